"""BabyAI-Text as a `TextEnv`."""

from collections.abc import Iterator, Sequence
from random import Random

from typing_extensions import override

from sacglam.envs.base import BaseEnv, Split
from sacglam.envs.playground.vocabulary import Thing
from sacglam.errors import ConfigError
from sacglam.types import Observation, Step
from sacglam.worlds.babyai.goals import ANY_DOOR, TASKS, Goal, family, text
from sacglam.worlds.babyai.level import Event, Level

ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")
"""GLAM's names of the actions, in the order of minigrid's numbers."""


class BabyAI(BaseEnv[Goal]):
    """BabyAI-Text (Carta et al., 2023) on minigrid; docs/guides/babyai.md lists what differs from GLAM's.

    Args:
        tasks: some of `go_to`, `pick_up`, `put_next`, `open` and `sequence`; by default all, as in GLAM's mixed level.
        room_size: side of a room with its walls, 5 to 25.
        num_distractors: objects besides those of the goal.
        max_steps: steps until an episode is truncated; by default minigrid's limit: `room_size` squared for each
            object of the goal, twice that for a door.

    Raises:
        ConfigError: an option is out of range.
    """

    def __init__(
        self,
        *,
        tasks: Sequence[str] = tuple(TASKS),
        room_size: int = 8,
        num_distractors: int = 8,
        max_steps: int | None = None,
    ) -> None:
        tasks = (tasks,) if isinstance(tasks, str) else tuple(tasks)
        if not tasks or not set(tasks) <= TASKS.keys():
            raise ConfigError(f"babyai: expected tasks among {', '.join(TASKS)}, got {list(tasks)}")
        super().__init__("babyai with these tasks", max_steps)
        self._check_range("room_size", room_size, 5, 25)
        most = (room_size - 2) ** 2 // 4  # with more, scenes in which everything can be reached are hard to find
        self._check_range(f"num_distractors (in rooms of size {room_size})", num_distractors, 0, most)
        self._space = family(tuple(task for task in TASKS if task in tasks))
        self._trained = {text: goal for text, goal in self._space.items() if not goal.heldout}
        self._levels = [Level(doors, room_size, num_distractors, max_steps) for doors in (False, True)]

    @override
    def goals(self, split: Split) -> Sequence[str]:
        return list(self._trained) if split == "train" else [goal for goal in self._space if goal not in self._trained]

    @override
    def goal_type(self, goal: str) -> str:
        return self._wanted(goal).type

    @override
    def _start(self, wanted: Goal, rng: Random) -> Observation:
        self._level = self._levels[wanted.type == "open"]
        self._picked: dict[Thing, None] = {}  # in order
        return Observation(self._level.start(wanted, rng.getrandbits(32)), ACTIONS)

    @override
    def step(self, action: int) -> Step:
        seen, events, late = self._level.act(action)
        candidates = [goal for event in events for goal in self._candidates(event)]
        # The social partner names training goals, and the episode's own even if it is held out.
        described = [goal for goal in candidates if goal == self._goal or goal in self._trained]
        return self._outcome(Observation(seen, ACTIONS), described, truncated=late)

    @override
    def optimal_length(self) -> int | None:
        """Steps that minigrid's bot takes from here to the goal, an upper bound on the fewest; 0 once it is achieved.

        None if the bot does not get there.
        """
        return 0 if self._goal in self._achieved else self._level.bot_steps()

    @override
    def expert(self) -> int | None:
        return self._level.advice()

    def _candidates(self, event: Event) -> Iterator[str]:
        """What `event` achieves, whether or not it is a goal of these tasks; adds `event` to the history."""
        yield text(event.type, *event.things)
        if event.type == "open":
            yield text("open", ANY_DOOR)
        if event.type in ("go_to", "pick_up"):
            for earlier in self._picked:
                yield text(f"pick_up_then_{event.type}", earlier, *event.things)
                yield text(f"{event.type}_after_pick_up", earlier, *event.things)
        if event.type == "pick_up":
            self._picked[event.things[0]] = None
