"""Playground-Text as a `TextEnv`."""

from collections.abc import Sequence
from random import Random
from typing import Literal

from typing_extensions import override

from sacglam.envs.base import BaseEnv, Split
from sacglam.envs.playground import goals, scene
from sacglam.envs.playground.goals import Goal
from sacglam.envs.playground.text import observe
from sacglam.envs.playground.vocabulary import KINDS, Thing
from sacglam.envs.playground.world import State, Verb, legal_actions, shortest, transition
from sacglam.errors import ConfigError
from sacglam.types import Observation, Step

Size = Literal["simple", "full"]

_MAX_OBJECTS = 48  # half of the 96 that exist, so that redrawing until no two are alike stays quick
_DEFAULTS = {"simple": (3, 10, False), "full": (6, 30, True)}  # num_objects, max_steps and sequential by size


class Playground(BaseEnv[Goal]):
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
        name = f"playground {'with' if self._sequential else 'without'} sequential goals"
        super().__init__(name, default_steps if max_steps is None else max_steps)
        self._space = goals.family(self._sequential)
        self._num_objects = default_objects if num_objects is None else num_objects
        fewest = 3 if self._sequential else 2  # one for each part of a goal, and a supply that grows what must grow
        self._check_range("num_objects", self._num_objects, fewest, _MAX_OBJECTS)

    @override
    def goals(self, split: Split) -> Sequence[str]:
        return goals.goals(self._sequential, split == "heldout")

    @override
    def goal_type(self, goal: str) -> str:
        return self._wanted(goal).type

    @override
    def _start(self, wanted: Goal, rng: Random) -> Observation:
        self._parts = wanted.parts
        self._things = scene.sample(self._parts, self._num_objects, rng)
        self._kinds = tuple([KINDS[thing.type] for thing in self._things])
        self._state = State()
        self._seen: dict[State, Observation] = {}
        self._grown: dict[Thing, None] = {}  # in order
        return self._observe()

    @override
    def step(self, action: int) -> Step:
        """Take the action with this index. `achieved` is the social partner's description, and decides the reward."""
        chosen = legal_actions(len(self._kinds), self._state.held)[action]
        self._state, event = transition(self._kinds, self._state, chosen)
        achieved = () if event is None else self._describe(event.verb, self._things[event.slot])
        return self._outcome(self._observe(), achieved)

    def _observe(self) -> Observation:
        """The observation of the present state, kept because an episode returns to its states."""
        if self._state not in self._seen:
            self._seen[self._state] = observe(self._things, self._state)
        return self._seen[self._state]

    def _describe(self, verb: Verb, thing: Thing) -> list[str]:
        """The social partner: the training goals achieved by `verb` happening to `thing`, in a fixed order.

        The episode's own goal is described even if it is held out. Others never are, or hindsight would train on them.
        """
        achieved = [*goals.texts(verb, thing, None)]
        if self._sequential:
            for grown in self._grown:
                achieved += goals.texts(verb, thing, grown)
        if self._parts_left() == 1 and self._parts[-1].fits(verb, thing):
            achieved.append(self._goal)
        if verb is Verb.GROW:
            self._grown[thing] = None
        return achieved

    def _parts_left(self) -> int:
        """How many parts of the episode's goal are left to achieve."""
        if self._goal in self._achieved:
            return 0
        first, *rest = self._parts
        return 1 if any(first.fits(Verb.GROW, grown) for grown in self._grown) else 1 + len(rest)

    @override
    def optimal_length(self) -> int | None:
        """Fewest steps from here to the episode's goal, by exact search; 0 once it is achieved.

        It ignores the step limit, and is never None: each scene makes its goal possible, and no state is a dead end.
        """
        stages = scene.stages(self._parts, self._things)
        return shortest(self._kinds, self._state, stages[len(stages) - self._parts_left() :])
