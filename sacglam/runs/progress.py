"""How far a run is, and the means of its metrics since the last line of metrics.jsonl."""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field, PositiveInt
from pydantic.dataclasses import dataclass

from sacglam.types import Episode

_RECENT_EPISODES = 200
_SAVED = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")
_Count = Annotated[int, Field(ge=0)]
_Seconds = Annotated[float, Field(ge=0)]


@dataclass(config=_SAVED)
class Progress:
    """Counters of one run; `seconds` is training time, without evaluation and checkpoints.

    `cpu_seconds` are those of its processes meanwhile; None in a run that was begun before they were counted.
    """

    env_steps: _Count = 0
    updates: _Count = 0
    episodes: _Count = 0
    seconds: _Seconds = 0.0
    cpu_seconds: _Seconds | None = 0.0


@dataclass(config=_SAVED)
class _WindowState:
    """A `MetricsWindow` in a checkpoint."""

    sums: dict[str, float]
    counts: dict[str, PositiveInt]
    recent: list[bool]


class MetricsWindow:
    """Averages metrics between two log lines, and success over the most recent episodes."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)
        self._recent: deque[bool] = deque(maxlen=_RECENT_EPISODES)

    def add(self, metrics: Mapping[str, float]) -> None:
        """One update's metrics."""
        for name, value in metrics.items():
            self._sums[name] += value
            self._counts[name] += 1

    def add_episodes(self, episodes: Iterable[Episode], goal_type: Callable[[str], str]) -> None:
        """Episodes that ended; success by the type of their goals is a mean since the last flush."""
        for episode in episodes:
            self._recent.append(episode.success)
            success, achieved = float(episode.success), sum(len(step.achieved) for step in episode.steps)
            self.add({"episode_length": float(len(episode.steps)), f"success/{goal_type(episode.goal)}": success})
            self.add({"episode_success": success, "goals_achieved": float(achieved), **_entropy_share(episode)})

    @property
    def success(self) -> float | None:
        """Training success (sampled actions) over the last 200 episodes; None before the first."""
        return sum(self._recent) / len(self._recent) if self._recent else None

    def flush(self) -> dict[str, float]:
        """The means since the last flush, and `success`; starts the next window."""
        means = {name: self._sums[name] / self._counts[name] for name in self._sums}
        self._sums.clear()
        self._counts.clear()
        return means if self.success is None else {"success": self.success, **means}

    def state(self) -> dict[str, Any]:
        """As JSON values."""
        return {"sums": dict(self._sums), "counts": dict(self._counts), "recent": list(self._recent)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state()` gave."""
        saved = _WindowState(**state)
        self._sums = defaultdict(float, saved.sums)
        self._counts = defaultdict(int, {name: saved.counts[name] for name in saved.sums})
        self._recent = deque(saved.recent, maxlen=_RECENT_EPISODES)


def _entropy_share(episode: Episode) -> dict[str, float]:
    """Sampled entropy of the policy over the random policy's, -sum log pi(a|s) / sum ln |A|; none without choices."""
    uniform = sum(math.log(len(episode.observation(t).actions)) for t in range(len(episode.steps)))
    sampled = -sum(decision.log_prob for decision in episode.decisions)
    return {"entropy_share": sampled / uniform} if uniform else {}
