"""The replay buffer: a ring of steps to learn from, and its form on disk."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sacglam import files
from sacglam.config.sections import ReplayConfig
from sacglam.envs.checks import check_types
from sacglam.errors import CheckpointError
from sacglam.replay.graph import ReplayGraph
from sacglam.replay.windows import hindsight_goals, last_step
from sacglam.types import GOAL_REWARDS, Decision, Episode, Observation, Rewards, Step

_FORGETS = 50
"""How often the graph is rebuilt, without the episodes that are gone, while the ring is overwritten once."""

_Index = Annotated[int, Field(ge=0)]


class _SavedEpisode(files.Form):
    """An episode of T steps on disk, with texts and goals by their numbers."""

    goal: _Index
    seed: int
    observations: list[_Index]  # T + 1
    actions: list[_Index]
    log_probs: list[float]
    versions: list[_Index]
    rewards: list[float]
    achieved: list[list[_Index]]
    terminated: list[bool]
    truncated: list[bool]


class _Saved(files.Form):
    """A buffer on disk: each episode, observation and goal once."""

    goals: list[str]
    observations: list[list[str]]
    """The text, and the actions."""
    episodes: list[_SavedEpisode]
    entries: list[list[_Index]]
    """Episode, goal and start."""
    left: _Index
    """How many of the episodes, the oldest, are in the graph alone."""
    next: _Index
    """The next place to write."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a window starts: a step of an episode, and the goal for which it is learnt."""

    episode: Episode
    goal: str
    start: int


class ReplayBuffer:
    """Keeps the newest `capacity` entries, and each episode once, as long as an entry refers to it.

    Each step of an episode is an entry for the episode's own goal. With hindsight, the steps up to each other goal that
    the episode achieved are also entries for that goal (paper, Section 2.3) or, if `replay.hindsight` makes no copies,
    are relabelled when they are drawn.
    """

    def __init__(
        self,
        config: ReplayConfig,
        goal_type: Callable[[str], str],
        prior: Mapping[str, float],
        gamma: float = 1.0,
        rewards: Rewards = GOAL_REWARDS,
        history: int = 0,
    ) -> None:
        """`prior` is the environment's distribution over goal types; the last three are those of the `graph`."""
        self.goal_type = cache(goal_type)  # each batch asks for those of all goals
        self.type_names = sorted(prior)
        self.prior = np.array([prior[name] for name in self.type_names])
        self.capacity = config.capacity
        self.hindsight = config.hindsight
        self._on_draw = config.hindsight.relabels and not config.hindsight.copies
        self._numbers = {name: number for number, name in enumerate(self.type_names)}
        self._ring: list[Entry] = []
        self._next = 0
        self.others: Sequence[Episode] = ()
        """Episodes that are in the buffer's graph but not in the buffer."""
        self._new_graph = partial(ReplayGraph, gamma=gamma, rewards=rewards, history=history, goal_type=self.goal_type)
        self._graph: ReplayGraph | None = None  # built when first needed
        self._not_in_graph: list[Episode] = []
        self._left: list[Episode] = []  # in the graph but no longer in the ring
        self._relabelled = np.zeros(config.capacity, dtype=bool)
        self._achieved: npt.NDArray[np.bool_] | None = None  # built when first needed
        self._type = np.zeros(config.capacity, dtype=np.int32)
        self._version = np.zeros(config.capacity, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ring)

    def __getitem__(self, place: int) -> Entry:
        return self._ring[place]

    def episodes(self) -> list[Episode]:
        """The episodes that entries refer to, the oldest first."""
        by_age = [*self._ring[self._next :], *self._ring[: self._next]]
        return list({id(entry.episode): entry.episode for entry in by_age}.values())

    def remembered(self) -> list[Episode]:
        """Its `episodes`, after those that only its graph still has."""
        return [*self._left, *self.episodes()]

    def add(self, episode: Episode) -> None:
        """Append an episode's entries, overwriting the oldest once full.

        Raises:
            EnvironmentContractError: the type of one of its goals is not in `prior`.
        """
        steps = range(len(episode.steps)) if self.hindsight.relabels else ()
        achieved = [goal for t in steps for goal in hindsight_goals(episode, t)]
        check_types((episode.goal, *achieved), self.goal_type, self._numbers)
        if self._graph:
            self._not_in_graph.append(episode)
        for goal in (episode.goal, *(() if self._on_draw else achieved)):
            for start in range(last_step(episode, goal) + 1):
                self._append(Entry(episode, goal, start))

    def _append(self, entry: Entry) -> None:
        place = self._next
        if len(self._ring) < self.capacity:
            self._ring.append(entry)
        else:
            old, self._ring[place] = self._ring[place].episode, entry
            if self._ring[(place + 1) % self.capacity].episode is not old:
                self._left.append(old)
            if place % max(1, self.capacity // _FORGETS) == 0:
                self._left, self._graph = [], None
        achieved = hindsight_goals(entry.episode, entry.start) if self._on_draw else ()
        self._relabelled[place] = bool(achieved) or entry.goal != entry.episode.goal
        if self._achieved is not None:
            self._achieved[place] = self._types_achieved(entry)
        self._type[place] = self._numbers[self.goal_type(entry.goal)]
        self._version[place] = entry.episode.decisions[entry.start].version
        self._next = (place + 1) % self.capacity

    def _types_achieved(self, entry: Entry) -> npt.NDArray[np.bool_]:
        found = np.zeros(len(self.prior), dtype=bool)
        found[[self._numbers[self.goal_type(goal)] for goal in hindsight_goals(entry.episode, entry.start)]] = True
        return found

    @property
    def relabelled(self) -> npt.NDArray[np.bool_]:
        """Which entries are copies for another goal or, if there are no copies, steps that achieved another goal."""
        return self._relabelled[: len(self)]

    @property
    def types(self) -> npt.NDArray[np.int32]:
        """The type of each entry's goal, as an index into `type_names`."""
        return self._type[: len(self)]

    @property
    def achieved(self) -> npt.NDArray[np.bool_]:
        """For each entry, the types of other goals that its step achieved, (entries, types)."""
        if self._achieved is None:
            self._achieved = np.zeros((self.capacity, len(self.prior)), dtype=bool)
            for place, entry in enumerate(self._ring):
                self._achieved[place] = self._types_achieved(entry)
        return self._achieved[: len(self)]

    def graph(self) -> ReplayGraph:
        """The graph of the episodes in the buffer and the `others`.

        Each time a fiftieth of the ring has been overwritten, it is rebuilt without the episodes that are gone.
        """
        if self._graph is None:
            self._graph = self._new_graph([*self.others, *self.remembered()])
        elif self._not_in_graph:
            self._graph.add(self._not_in_graph)
        self._not_in_graph.clear()
        return self._graph

    def hindsight_share(self) -> float:
        """Share of relabelled entries (paper, Figure 7); without copies, of steps that achieved another goal."""
        return float(self.relabelled.mean()) if self._ring else 0.0

    def oldest_version(self) -> int:
        """The oldest policy version (in updates) that collected a step in the buffer."""
        return int(self._version[: len(self)].min()) if self._ring else 0

    def state(self) -> dict[str, Any]:
        """The buffer as JSON values."""
        goals, seen, kept = _Numbers(), _Numbers(), self.remembered()
        places = {id(episode): place for place, episode in enumerate(kept)}
        return {
            "entries": [[places[id(e.episode)], goals(e.goal), e.start] for e in self._ring],
            "episodes": [
                {
                    "goal": goals(e.goal),
                    "seed": e.seed,
                    "observations": [seen(e.observation(t)) for t in range(len(e.steps) + 1)],
                    "actions": [d.action for d in e.decisions],
                    "log_probs": [d.log_prob for d in e.decisions],
                    "versions": [d.version for d in e.decisions],
                    "rewards": [s.reward for s in e.steps],
                    "achieved": [[*map(goals, s.achieved)] for s in e.steps],
                    "terminated": [s.terminated for s in e.steps],
                    "truncated": [s.truncated for s in e.steps],
                }
                for e in kept
            ],
            "goals": list(goals),
            "observations": [[o.text, *o.actions] for o in seen],
            "left": len(self._left),
            "next": self._next,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state()` returned.

        Raises:
            CheckpointError: it holds more than the capacity, or has wrapped around at a smaller one.
            ValueError, LookupError: it is damaged.
        """
        saved = _Saved.model_validate(state)
        size = len(saved.entries)
        if size > self.capacity or (size < self.capacity and saved.next != size):
            raise CheckpointError(
                f"the saved replay buffer of {size} entries does not fit replay.capacity {self.capacity}; "
                "resume with the capacity it was saved with"
            )
        seen = [Observation(text, tuple(actions)) for text, *actions in saved.observations]
        episodes = [_episode(each, saved.goals, seen) for each in saved.episodes]
        self._ring, self._next, self._graph, self._left = [], 0, None, episodes[: saved.left]
        for episode, goal, start in saved.entries:
            entry = Entry(episodes[episode], saved.goals[goal], start)
            if start > last_step(entry.episode, entry.goal):
                raise ValueError(f"expected a step on the way to {entry.goal!r}, got step {start}")
            self._append(entry)
        self._next = saved.next % self.capacity  # if a larger buffer saved it, `next` equals the capacity


class _Numbers(dict[Any, int]):
    """Numbers values in the order of their first appearance."""

    def __call__(self, value: Any) -> int:
        return self.setdefault(value, len(self))


def _episode(saved: _SavedEpisode, goals: Sequence[str], seen: Sequence[Observation]) -> Episode:
    """An episode of a buffer's `state()`; a `ValueError` or `LookupError` if it is damaged."""
    first, *after = [seen[i] for i in saved.observations]
    columns = (after, saved.rewards, saved.achieved, saved.terminated, saved.truncated)
    steps = [
        Step(observation, reward, tuple(goals[i] for i in achieved), *end)
        for observation, reward, achieved, *end in zip(*columns, strict=True)
    ]
    decisions = [Decision(*d) for d in zip(saved.actions, saved.log_probs, saved.versions, strict=True)]
    if any(d.action >= len(state.actions) for d, state in zip(decisions, [first, *after[:-1]], strict=True)):
        raise ValueError("expected actions of their observations")
    return Episode(goals[saved.goal], first, tuple(decisions), tuple(steps), saved.seed)
