"""What a set of runs tells a person while it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sacglam.runs.directory import RunDirectory
from sacglam.tools.experiments.plan import Run


@dataclass(frozen=True)
class Glimpse:
    """How far a run is: its last line of metrics, and success at its last evaluation."""

    env_steps: int = 0
    seconds: float = 0.0
    success: float | None = None

    def seconds_left(self, steps: int) -> float | None:
        """Training seconds to go at the pace so far; None before the first line."""
        return self.seconds * max(0, steps - self.env_steps) / self.env_steps if self.env_steps else None


def glimpse(run: Run) -> Glimpse:
    """How far `run` is now."""
    lines = RunDirectory(run.folder).metrics()
    measured = [line["eval_success/overall"] for line in lines if "eval_success/overall" in line]
    if not lines:
        return Glimpse()
    return Glimpse(lines[-1]["env_steps"], lines[-1]["seconds"], measured[-1] if measured else None)


class Watcher(Protocol):
    """Shows a set of runs."""

    def begin(self, total: int, done: int) -> None:
        """There are `total` runs, `done` of them from before."""

    def started(self, run: Run, stage: str) -> None:
        """A run enters a stage: `training` or `held-out goals`."""

    def progress(self, run: Run, now: Glimpse) -> None:
        """A training has come this far."""

    def finished(self, run: Run, outcome: str) -> None:
        """A run is over."""

    def left(self, seconds: float | None) -> None:
        """Estimated seconds until all runs are over."""

    def note(self, text: str) -> None:
        """Something worth a line happened."""
