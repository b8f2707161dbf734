"""A run's counters, and the means of its metrics since the last line of metrics.jsonl."""

import math
from collections.abc import Callable, Iterable, Mapping

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from sacglam.types import Episode

_RECENT_EPISODES = 200
_SAVED = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")


@dataclass(config=_SAVED)
class Progress:
    """Counters of one run; `seconds` is training time, without evaluations and checkpoints.

    `cpu_seconds` is the CPU time of all its processes in that time.
    """

    env_steps: NonNegativeInt = 0
    updates: NonNegativeInt = 0
    episodes: NonNegativeInt = 0
    seconds: NonNegativeFloat = 0.0
    cpu_seconds: NonNegativeFloat = 0.0

    @property
    def place(self) -> tuple[int, int]:
        """Environment steps and updates, which order the moments of a run."""
        return self.env_steps, self.updates


@dataclass(config=_SAVED)
class MetricsAccumulator:
    """Averages metrics between two log lines, and success over the most recent episodes."""

    sums: dict[str, float] = Field(default_factory=dict)
    counts: dict[str, PositiveInt] = Field(default_factory=dict)
    recent: list[bool] = Field(default_factory=list)
    """Success of the last 200 finished episodes."""

    def __post_init__(self) -> None:
        if self.sums.keys() != self.counts.keys():
            raise ValueError("expected the same metrics in sums and counts")

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add the metrics of one update."""
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1

    def add_episodes(
        self, episodes: Iterable[Episode], goal_type: Callable[[str], str], own_rewards: bool = False
    ) -> None:
        """Add finished episodes, averaging success by goal type (and return, with own rewards) since the last flush."""
        for episode in episodes:
            self.recent = [*self.recent, episode.success][-_RECENT_EPISODES:]
            success, achieved = float(episode.success), sum(len(step.achieved) for step in episode.steps)
            self.add({"episode_length": float(len(episode.steps)), f"success/{goal_type(episode.goal)}": success})
            self.add({"episode_success": success, "goals_achieved": float(achieved), **_entropy_share(episode)})
            if own_rewards:
                self.add({"episode_return": episode.return_})

    def flush(self) -> dict[str, float]:
        """Return the means since the last flush, and training `success` over the last 200 episodes, then start over."""
        means = {name: total / self.counts[name] for name, total in self.sums.items()}
        ended = {name.removeprefix("success/"): n for name, n in self.counts.items() if name.startswith("success/")}
        means |= {f"goal_share/{kind}": count / sum(ended.values()) for kind, count in ended.items()}
        self.sums, self.counts = {}, {}
        return {"success": sum(self.recent) / len(self.recent), **means} if self.recent else means


def _entropy_share(episode: Episode) -> dict[str, float]:
    """Sampled entropy relative to the random policy's: -sum log pi(a|s) / sum ln |A|; empty if there was no choice."""
    uniform = sum(math.log(len(episode.observation(t).actions)) for t in range(len(episode.steps)))
    sampled = -sum(decision.log_prob for decision in episode.decisions)
    return {"entropy_share": sampled / uniform} if uniform else {}
