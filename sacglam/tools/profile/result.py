"""The result of a profile: plain numbers for the tables and `profile.json`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Work:
    """What passed through the language model in the measured intervals."""

    tokens: int
    tokens_computed: int  # padding included
    flop: int  # with padding; see docs/guides/profiling.md


@dataclass(frozen=True)
class Profile:
    """Where the time of some intervals of a run went."""

    label: str
    algorithm: str
    device: str
    threads: int
    warm_up_intervals: int  # left out; those that fill the replay buffer are among them
    intervals: int
    env_steps: int
    updates: int
    wall_seconds: float
    cpu_seconds: float  # of all threads of this process; less than their wall time if the machine is shared
    seconds: Mapping[str, float]  # by phase, in the order of the loop; they add up to `wall_seconds`
    rank_seconds_per_update: Mapping[str, float]  # by phase, on the first learner rank's clock; empty without ranks
    work: Work | None  # None if the model is in other processes
    matmul_rate: float | None  # FLOP per second of matrix products here; None if the model is in other processes

    def utilisation(self) -> float | None:
        """FLOP per second relative to matrix products alone: 1 for a machine that does nothing else."""
        return self.work.flop / self.wall_seconds / self.matmul_rate if self.work and self.matmul_rate else None

    def to_json(self) -> dict[str, Any]:
        """All fields, and the rates that follow from them."""
        rates = {
            "env_steps_per_second": self.env_steps / self.wall_seconds,
            "updates_per_second": self.updates / self.wall_seconds,
            "ms_per_env_step": {name: 1e3 * s / self.env_steps for name, s in self.seconds.items()},
            "ms_per_update": {name: 1e3 * s / self.updates for name, s in self.seconds.items()},
            "tokens_per_second": self.work.tokens / self.wall_seconds if self.work else None,
            "flop_per_second": self.work.flop / self.wall_seconds if self.work else None,
            "utilisation": self.utilisation(),
        }
        return {**asdict(self), **rates}
