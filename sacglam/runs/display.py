"""What a run reports while it goes: how it is shown, and where else its records go, is up to the caller."""

from collections.abc import Callable, Mapping
from typing import Any

from sacglam.config import TrackingConfig
from sacglam.runs.directory import RunDirectory
from sacglam.runs.progress import Progress


class Display:
    """Shows a run; this one shows nothing."""

    def stage(self, name: str, total: int) -> None:
        """A stage begins; `total` is its length in the unit of `advance`."""

    def advance(self, done: int) -> None:
        """The stage has come this far."""

    def metrics(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """A line of metrics was logged."""

    def note(self, text: str) -> None:
        """Something worth a line happened."""


class Tracker:
    """Copies a run's records elsewhere while it trains; this one copies nothing. It notes its failures and goes on."""

    def start(self) -> None:
        """The run begins, or resumes: its records will be in its folder."""

    def check(self) -> None:
        """A line of metrics was logged."""

    def close(self) -> dict[str, Any]:
        """The run has written its last record; what to add to its summary."""
        return {}


NewTracker = Callable[[RunDirectory, TrackingConfig, Display], Tracker]
"""Creates the tracker of the run in a folder, without starting it."""
