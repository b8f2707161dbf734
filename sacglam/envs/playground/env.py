"""Playground-Text as a `TextEnv`."""

from collections.abc import Sequence
from difflib import get_close_matches
from random import Random
from typing import Literal

from typing_extensions import override

from sacglam.envs.base import Split, TextEnv
from sacglam.envs.playground import goals, scene
from sacglam.envs.playground.goals import Goal
from sacglam.envs.playground.text import Narrator
from sacglam.envs.playground.vocabulary import KINDS, Thing
from sacglam.envs.playground.world import State, Verb, legal_actions, shortest, transition
from sacglam.errors import ConfigError
from sacglam.types import Observation, Step

Size = Literal["simple", "full"]

_MOST_OBJECTS = 48  # half of the 96 that exist, so that redrawing until no two are alike stays quick
_DEFAULTS = {"simple": (3, 10, False), "full": (6, 30, True)}  # num_objects, max_steps and sequential by size


class Playground(TextEnv):
    """Playground-Text (paper, Section 3 and Appendix A; docs/guides/playground.md lists our own choices).

    Args:
        size: the defaults of the others. `full`: 6 objects, 30 steps, sequential goals (the paper's game); `simple`:
            3 objects, 10 steps, single goals only (`playground_simple`).
        num_objects: objects in a scene.
        max_steps: steps until an episode is truncated.
        sequential: whether the goal space includes `a then b` goals.

    Raises:
        ConfigError: an option is out of range.
    """

    def __init__(
        self,
        *,
        size: Size = "full",
        num_objects: int | None = None,
        max_steps: int | None = None,
        sequential: bool | None = None,
    ) -> None:
        if size not in _DEFAULTS:
            raise ConfigError(f"playground: expected size {' or '.join(map(repr, _DEFAULTS))}, got {size!r}")
        default_objects, default_steps, default_sequential = _DEFAULTS[size]
        self._sequential = default_sequential if sequential is None else sequential
        self._num_objects = default_objects if num_objects is None else num_objects
        self._max_steps = default_steps if max_steps is None else max_steps
        fewest = 3 if self._sequential else 2  # one for each part of a goal, and a supply that grows what must grow
        if not fewest <= self._num_objects <= _MOST_OBJECTS:
            raise ConfigError(
                f"playground: expected num_objects from {fewest}, which the goals need, to {_MOST_OBJECTS}, "
                f"got {self._num_objects}"
            )
        if self._max_steps < 1:
            raise ConfigError(f"playground: expected max_steps of at least 1, got {self._max_steps}")

    @override
    def goals(self, split: Split) -> Sequence[str]:
        return goals.goals(self._sequential, split == "heldout")

    @override
    def goal_type(self, goal: str) -> str:
        return self._parse(goal).type

    @override
    def reset(self, goal: str, seed: int) -> Observation:
        """Start the episode of `goal`, trained on or held out, and `seed`, in a scene where the goal is possible.

        Raises:
            ConfigError: `goal` is not in the goal space.
        """
        self._goal = self._parse(goal)
        # A string seeds through SHA-512, so the scene is the same in every process; hash() would not be.
        self._things = scene.sample(self._goal, self._num_objects, Random(f"{seed} {goal}"))
        self._kinds = tuple([KINDS[thing.type] for thing in self._things])
        self._narrator = Narrator(self._things)
        self._state, self._steps = State(), 0
        self._grown: dict[Thing, None] = {}  # in order
        self._achieved: set[str] = set()
        return self._narrator.observe(self._state)

    @override
    def step(self, action: int) -> Step:
        """Take the action with this index. `achieved` is the social partner's description, and decides the reward."""
        chosen = legal_actions(len(self._kinds), self._state)[action]
        self._state, event = transition(self._kinds, self._state, chosen)
        self._steps += 1
        achieved = () if event is None else self._describe(event.verb, self._things[event.slot])
        terminated = self._goal.text in achieved
        truncated = not terminated and self._steps >= self._max_steps
        return Step(self._narrator.observe(self._state), float(terminated), achieved, terminated, truncated)

    def _describe(self, verb: Verb, thing: Thing) -> tuple[str, ...]:
        """The social partner: the training goals first achieved by `verb` happening to `thing`, in a fixed order.

        The episode's own goal is described even if it is held out. Others never are, or hindsight would train on them.
        """
        candidates = [*goals.texts(verb, thing, None)]
        if self._sequential:
            for grown in self._grown:
                candidates += goals.texts(verb, thing, grown)
        if self._goal.heldout and self._parts_left() == 1 and self._goal.parts[-1].fits(verb, thing):
            candidates.append(self._goal.text)
        new = tuple(text for text in dict.fromkeys(candidates) if text not in self._achieved)
        self._achieved.update(new)
        if verb is Verb.GROW:
            self._grown[thing] = None
        return new

    def _parts_left(self) -> int:
        """How many parts of the episode's goal are left to achieve."""
        if self._goal.text in self._achieved:
            return 0
        first, *rest = self._goal.parts
        return 1 if any(first.fits(Verb.GROW, grown) for grown in self._grown) else 1 + len(rest)

    @override
    def optimal_length(self) -> int | None:
        """Fewest steps from here to the episode's goal, by exact search; 0 once it is achieved.

        It ignores the step limit, and is never None: each scene makes its goal possible, and no state is a dead end.
        """
        stages = scene.stages(self._goal, self._things)
        return shortest(self._kinds, self._state, stages[len(stages) - self._parts_left() :])

    def _parse(self, text: str) -> Goal:
        family = goals.family(self._sequential)
        if text not in family:
            near = get_close_matches(text, family, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected one like {next(iter(family))!r}"
            kind = "" if self._sequential else " with sequential=False"
            raise ConfigError(f"{text!r} is not a Playground goal{kind}; {hint}")
        return family[text]
