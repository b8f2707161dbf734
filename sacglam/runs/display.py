"""Interfaces for a run's progress and records: the caller decides how to show them and where to copy them."""

from collections.abc import Callable, Mapping

from sacglam.config.sections import TrackingConfig
from sacglam.runs.directory import RunDirectory
from sacglam.runs.progress import Progress


class Display:
    """Shows a run; this one shows nothing."""

    def stage(self, name: str, total: int) -> None:
        """Start a stage; `total` is its length in the unit of `advance`."""

    def advance(self, done: int) -> None:
        """Report how much of the stage is done."""

    def metrics(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """A line of metrics was logged."""

    def note(self, text: str) -> None:
        """Show one line of text."""


class Tracker:
    """Copies a run's records elsewhere during training; this one does nothing. Failures are noted, never raised."""

    def start(self) -> None:
        """The run starts or resumes; its records will appear in its folder."""

    def logged(self, line: Mapping[str, float]) -> bool:
        """A line of metrics was logged. Returns whether the run is to stop, as after Ctrl-C."""
        return False

    def close(self) -> None:
        """The run has written its last record."""


NewTracker = Callable[[RunDirectory, TrackingConfig, Display], Tracker]
"""Creates the tracker of the run in a folder, without starting it."""
