"""Sources of goals, which choose the goal and the seed of each episode."""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from sacglam.config.kinds import GoalsConfig
from sacglam.errors import ConfigError
from sacglam.types import Episode

T = TypeVar("T")

_REMEMBERED = 100  # outcomes per group
_NOTICEABLE = 0.01  # progress below this counts as none
_CANDIDATES = 64  # most groups compared per choice, so that choosing among thousands of goals stays cheap
_LEAST_UNIFORM, _DECAY = 0.2, 320  # final share of uniform choices; episodes after which the rest has fallen to 1/e


@dataclass(frozen=True)
class Start:
    """Everything that determines an episode apart from the agent's actions."""

    goal: str
    seed: int
    scene: str | None = None
    """For an imagined `goal`, the training goal that the environment is reset with instead; otherwise None."""


@dataclass(eq=False)
class GoalSource(Iterator[Start]):
    """An endless stream of starts, with uniformly drawn goals (paper, Appendix A) unless a subclass chooses them.

    Whatever a subclass learns from episodes belongs in its `state`, which is checkpointed like that of `rng`.
    """

    goals: Sequence[str]
    rng: np.random.Generator

    @cached_property
    def given(self) -> frozenset[str]:
        """The training goals, for look-ups."""
        return frozenset(self.goals)

    @override
    def __next__(self) -> Start:
        if (goal := self.choose()) not in self.given:
            raise ConfigError(f"goals.type: {type(self).__name__}.choose() gave {goal!r}, which is not a training goal")
        return Start(goal, int(self.rng.integers(2**31)))

    def choose(self) -> str:
        """The goal of the next episode."""
        return draw(self.rng, self.goals)

    def observe(self, episodes: Sequence[Episode]) -> None:
        """Learn from the episodes that ended in an interval."""

    def metrics(self) -> dict[str, float]:
        """Additions to a line of metrics.jsonl."""
        return {}

    def state(self) -> dict[str, Any]:
        """What was learnt, as JSON values for a checkpoint."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state()` returned."""


class UniformConfig(GoalsConfig):
    """Every goal is equally likely."""

    type: str = "uniform"

    @override
    def build(
        self, goals: Sequence[str], goal_type: Callable[[str], str], rng: np.random.Generator, *model: Any
    ) -> GoalSource:
        return GoalSource(goals, rng)


class ProgressConfig(GoalsConfig):
    """Goals are drawn in proportion to recent learning progress: how far their success rate rose or fell."""

    type: str = "progress"
    by: Literal["type", "goal"] = "type"
    """Whether progress is measured per goal type, within which all goals are equally likely, or per goal."""

    @override
    def build(
        self, goals: Sequence[str], goal_type: Callable[[str], str], rng: np.random.Generator, *model: Any
    ) -> GoalSource:
        return ProgressSource(goals, rng, goal_type, self.by)


@dataclass(eq=False)
class ProgressSource(GoalSource):
    """Draws groups of goals in proportion to their learning progress (Gaven et al., 2025, the online baselines).

    After k episodes a share epsilon = 0.2 + 0.8 exp(-k / 320) of the draws is uniform over the groups, as are all draws
    while no group makes progress. So even a type with few goals is tried.
    """

    at_first: ClassVar[Mapping[str, Any]] = {"episodes": 0, "outcomes": {}}

    goal_type: Callable[[str], str]
    by: Literal["type", "goal"]

    def __post_init__(self) -> None:
        self._types = {goal: self.goal_type(goal) for goal in self.goals}
        self._group = self._types if self.by == "type" else {goal: goal for goal in self.goals}
        self._members = defaultdict[str, list[str]](list)
        for goal, group in self._group.items():
            self._members[group].append(goal)
        self._groups = list(self._members)
        self.load_state(self.at_first)

    @override
    def choose(self) -> str:
        groups = self.candidates()
        epsilon = _LEAST_UNIFORM + (1 - _LEAST_UNIFORM) * math.exp(-self._episodes / _DECAY)
        progress = self.progress(groups) if self.rng.random() >= epsilon else np.zeros(len(groups))
        if not progress.any():
            progress = np.ones(len(groups))
        return draw(self.rng, self._members[groups[self.rng.choice(len(groups), p=progress / progress.sum())]])

    def candidates(self) -> Sequence[str]:
        """The groups to choose from."""
        few = len(self._groups) <= _CANDIDATES
        return self._groups if few else [draw(self.rng, self._groups) for _ in range(_CANDIDATES)]

    def progress(self, groups: Sequence[str]) -> npt.NDArray[np.float64]:
        """The `learning_progress` of each group within its last 100 outcomes; 0 below 0.01."""
        return noticeable(np.array([learning_progress(self._outcomes.get(group, ())) for group in groups]))

    @override
    def observe(self, episodes: Sequence[Episode]) -> None:
        self._episodes += len(episodes)
        for episode in episodes:
            self._outcomes[self._group[episode.goal]].append(episode.success)

    @override
    def metrics(self) -> dict[str, float]:
        by_type = defaultdict[str, list[float]](list)
        for group, progress in zip(self._groups, self.progress(self._groups).tolist(), strict=True):
            by_type[self._types[self._members[group][0]]].append(progress)
        return {f"progress/{kind}": float(np.mean(values)) for kind, values in by_type.items()}

    @override
    def state(self) -> dict[str, Any]:
        return {"episodes": self._episodes, "outcomes": {group: [*each] for group, each in self._outcomes.items()}}

    @override
    def load_state(self, state: Mapping[str, Any]) -> None:
        self._episodes = int(state["episodes"])
        self._outcomes: defaultdict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
        for group, outcomes in state["outcomes"].items():
            self._outcomes[group].extend(map(bool, outcomes))


def halves(outcomes: Sequence[bool]) -> tuple[float, float]:
    """The success rates of the older and the newer half; both 0 for fewer than two outcomes."""
    recent = list(outcomes)
    half = len(recent) // 2
    return (sum(recent[:half]) / half, sum(recent[-half:]) / half) if half else (0.0, 0.0)


def learning_progress(outcomes: Sequence[bool]) -> float:
    """sqrt(max(0, (S_new - S_old)^2 - SE^2)): the difference of `halves`, corrected for chance.

    SE^2 = (S_new (1 - S_new) + S_old (1 - S_old)) / n, with n outcomes in a half, is the variance of the difference.
    Uncorrected, a group that is mastered but not perfect would seem to progress forever.
    """
    older, newer = halves(outcomes)
    by_chance = sum(rate * (1 - rate) for rate in (older, newer)) / max(1, len(outcomes) // 2)
    return math.sqrt(max(0.0, (newer - older) ** 2 - by_chance))


def noticeable(progress: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """`progress`, 0 where it is below 0.01."""
    return np.where(progress < _NOTICEABLE, 0.0, progress)


def draw(rng: np.random.Generator, values: Sequence[T]) -> T:
    """One of `values`, all equally likely."""
    return values[int(rng.integers(len(values)))]
