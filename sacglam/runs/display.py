"""What a run reports while it goes; how it is shown is up to the caller."""

from collections.abc import Mapping

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
