"""What a training tells a person while it runs; how it is shown is the caller's affair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sacglam.runs.progress import Progress


class Display(Protocol):
    """Shows a training."""

    def stage(self, name: str, total: int) -> None:
        """A stage begins; `total` is its length in the unit of `advance`."""

    def advance(self, done: int) -> None:
        """The stage has come this far."""

    def metrics(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """A line of metrics was logged."""

    def note(self, text: str) -> None:
        """Something worth a line happened."""


class Silent:
    """Shows nothing."""

    def stage(self, name: str, total: int) -> None:
        """Nothing."""

    def advance(self, done: int) -> None:
        """Nothing."""

    def metrics(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""
