"""The result of a profile: plain numbers for the table, the chart and `profile.json`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Work:
    """What passed through the language model in the measured intervals."""

    tokens: int
    tokens_computed: int  # padding included
    flop: int  # as computed, so with padding; see docs/guides/profiling.md


@dataclass(frozen=True)
class Floor:
    """The matrix products that an environment step needs at least, at the pace of this machine."""

    forwards: float  # F: forward passes that a step costs, its share of the updates included
    state_flop: float  # of one forward pass of the base model, at a state of mean length, without padding
    matmul_rate: float  # FLOP per second of products with the model's matrices

    @property
    def seconds(self) -> float:
        """Seconds per environment step."""
        return self.forwards * self.state_flop / self.matmul_rate


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
    work: Mapping[str, Work]  # by phase; empty if the model is in other processes
    floor: Floor | None  # None if the model is in other processes
    initial_seconds: float = 0.0  # of all initial updates, on demonstrations, before the first step

    def total(self) -> Work | None:
        """The work of all phases."""
        if not self.work:
            return None
        parts = self.work.values()
        return Work(sum(w.tokens for w in parts), sum(w.tokens_computed for w in parts), sum(w.flop for w in parts))

    def floor_share(self) -> float | None:
        """The floor's share of the time taken: 1 for a machine that does nothing but multiply."""
        return self.floor.seconds * self.env_steps / self.wall_seconds if self.floor else None

    def to_json(self) -> dict[str, Any]:
        """All fields, and the rates that follow from them."""
        total = self.total()
        rates = {
            "env_steps_per_second": self.env_steps / self.wall_seconds,
            "updates_per_second": self.updates / self.wall_seconds,
            "ms_per_env_step": {name: 1e3 * s / self.env_steps for name, s in self.seconds.items()},
            "ms_per_update": {name: 1e3 * s / self.updates for name, s in self.seconds.items()},
            "tokens_per_second": total.tokens / self.wall_seconds if total else None,
            "flop_per_second": total.flop / self.wall_seconds if total else None,
            "floor_ms_per_env_step": 1e3 * self.floor.seconds if self.floor else None,
            "floor_share": self.floor_share(),
        }
        return {**asdict(self), **rates}
