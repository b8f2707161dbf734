"""The protocol of an environment, and what the included ones share."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from random import Random
from typing import Generic, Literal, Protocol, TypeVar

from typing_extensions import override

from sacglam.errors import ConfigError
from sacglam.types import Observation, Step

Split = Literal["train", "heldout"]
SPLITS: Mapping[Split, str] = {"train": "training", "heldout": "held-out"}
"""What goals of a split are called."""
Wanted = TypeVar("Wanted")  # what a goal asks for, as an environment looks it up


class TextEnv(Protocol):
    """A goal-conditioned text environment that plays one episode at a time.

    Contract: an episode is a function of `(goal, seed, actions)` and of nothing else, so that a checkpoint can store
    an open episode as its actions and replay it. Every state offers at least one action, and its actions have
    distinct texts. `CheckedEnv` enforces this, and refuses steps outside of an episode and actions that the state does
    not offer.
    """

    def goals(self, split: Split) -> Sequence[str]:
        """The training or the held-out goals, in a fixed order; `heldout` may be empty."""

    def goal_type(self, goal: str) -> str:
        """The kind of `goal`, by which success is reported, e.g. `grasp`."""

    def reset(self, goal: str, seed: int) -> Observation:
        """Start the episode given by `goal` and `seed`."""

    def step(self, action: int) -> Step:
        """Take the action with this index.

        The reward is 1 at the step that achieves the episode's goal, which ends the episode, and otherwise 0. With
        `env.reward: environment` it may be any finite number: `own_reward`, if that is given.
        """

    def tasks(self) -> Sequence[str]:
        """The training goals that evaluations draw from, in a fixed order; the others are only for practice."""
        return self.goals("train")

    def optimal_length(self) -> int | None:
        """Fewest steps from here to the episode's goal; None without a planner."""
        return None

    def expert(self) -> int | None:
        """The index of a good action in the current state, for demonstrations; None if none is known."""
        return None

    def close(self) -> None:
        """End what the environment has started, such as processes; no other call follows."""
        return


class BaseEnv(TextEnv, Generic[Wanted]):
    """Base of the included environments: keeps the goal, the length and the achievements of the current episode.

    A subclass begins an episode in `_start`, and its steps return an `_outcome`.
    """

    _space: Mapping[str, Wanted]
    """The goals, trained on or held out, and what each asks for."""

    def __init__(self, name: str, max_steps: int | None) -> None:
        """`max_steps`, at least 1, truncates episodes (None: never); error messages use `name`."""
        self.name, self._max_steps = name, max_steps
        if max_steps is not None:
            self._check_range("max_steps", max_steps, 1)

    def _check_range(self, option: str, value: int, least: int, most: int | None = None) -> None:
        if value < least or (most is not None and value > most):
            wanted = f"of at least {least}" if most is None else f"from {least} to {most:,}"
            raise ConfigError(f"{self.name}: expected {option} {wanted}, got {value}")

    def _wanted(self, goal: str) -> Wanted:
        """What `goal` asks for; an unknown goal is refused."""
        if goal not in self._space:
            raise self._no_goal(goal, self._space)
        return self._space[goal]

    def _no_goal(self, goal: str, goals: Iterable[str]) -> ConfigError:
        some = list(islice(goals, 10_000))
        near = get_close_matches(goal, some, n=1) or some
        return ConfigError(f"{goal!r} is not a goal of {self.name}; expected one like {near[0]!r}")

    @override
    def reset(self, goal: str, seed: int) -> Observation:
        """Start the episode of `goal`, trained on or held out; a `ConfigError` if it is not in the goal space."""
        wanted = self._wanted(goal)
        self._goal, self._seed, self._steps = goal, seed, 0
        self._achieved: set[str] = set()
        # A string seeds through SHA-512, so the draws are the same in every process; hash() would not be.
        return self._start(wanted, Random(f"{seed} {goal}"))

    @abstractmethod
    def _start(self, wanted: Wanted, rng: Random) -> Observation:
        """Begin an episode with this goal, in a state drawn from `rng`."""

    def _outcome(
        self,
        observation: Observation,
        achieved: Iterable[str],
        terminated: bool = False,
        truncated: bool = False,
        own_reward: float | None = None,
    ) -> Step:
        """The result of a step that `achieved` these goals, perhaps not for the first time.

        The episode also ends if the environment `terminated` or `truncated` it.
        """
        new = tuple(goal for goal in dict.fromkeys(achieved) if goal not in self._achieved)
        self._achieved.update(new)
        self._steps += 1
        success = self._goal in new
        terminated = success or terminated
        truncated = not terminated and (truncated or self._steps == self._max_steps)
        return Step(observation, float(success), new, terminated, truncated, own_reward)
