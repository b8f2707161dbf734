"""Environments given by their states: what can be done in each, how it reads, and which goals hold in it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Generic, TypeVar

from sacglam.envs import Split
from sacglam.errors import ConfigError
from sacglam.types import Observation, Step

State = TypeVar("State")


class StateEnv(ABC, Generic[State]):
    """The methods of `TextEnv`, from four that a subclass writes about its states, which are hashable.

    A step achieves the goals that hold after it, and did not hold before it in the episode.
    """

    def __init__(self, train: Sequence[str], heldout: Sequence[str], max_steps: int) -> None:
        self._goals: dict[Split, Sequence[str]] = {"train": train, "heldout": heldout}
        self._max_steps = max_steps

    @abstractmethod
    def first(self, goal: str, rng: Random) -> State:
        """The state that an episode starts in; `goal` does not hold in it."""

    @abstractmethod
    def moves(self, state: State) -> Mapping[str, State]:
        """The actions of a state, and the states that they lead to."""

    @abstractmethod
    def text(self, state: State) -> str:
        """What the agent reads: all of the state."""

    @abstractmethod
    def holds(self, state: State) -> Iterable[str]:
        """The goals that hold in a state, those held out included."""

    def goals(self, split: Split) -> Sequence[str]:
        return self._goals[split]

    def goal_type(self, goal: str) -> str:
        return goal.partition(" ")[0].lower()

    def reset(self, goal: str, seed: int) -> Observation:
        if goal not in self._goals["train"] and goal not in self._goals["heldout"]:
            raise ConfigError(f"{goal!r} is no goal of this environment; expected one like {self._goals['train'][0]!r}")
        self._goal, self._steps = goal, 0
        self._state = self.first(goal, Random(f"{seed} {goal}"))
        self._held = set(self.holds(self._state))
        return self._observe()

    def step(self, action: int) -> Step:
        self._state = list(self.moves(self._state).values())[action]
        self._steps += 1
        new = [goal for goal in self.holds(self._state) if goal not in self._held]
        self._held.update(new)
        achieved = tuple(goal for goal in new if goal == self._goal or goal in self._goals["train"])
        terminated = self._goal in achieved
        truncated = not terminated and self._steps >= self._max_steps
        return Step(self._observe(), float(terminated), achieved, terminated, truncated)

    def optimal_length(self) -> int | None:
        return shortest(self._state, lambda s: self.moves(s).values(), lambda s: self._goal in self.holds(s))

    def _observe(self) -> Observation:
        return Observation(self.text(self._state), tuple(self.moves(self._state)))


def shortest(
    start: State, successors: Callable[[State], Iterable[State]], found: Callable[[State], bool]
) -> int | None:
    """The fewest steps from `start` to a state that is `found`, by breadth-first search; None if there is none."""
    layer, seen, steps = [start], {start}, 0
    while layer:
        if any(map(found, layer)):
            return steps
        layer = list(dict.fromkeys(after for state in layer for after in successors(state) if after not in seen))
        seen.update(layer)
        steps += 1
    return None
