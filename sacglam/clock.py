"""Where the time goes: seconds by phase."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Watcher:
    """Sees phases begin and end; this one ignores them."""

    def boundary(self, phase: str) -> None:
        """Called just before `phase` begins or ends: the place to wait for a device that runs asynchronously."""

    def span(self, phase: str, start: float, seconds: float) -> None:
        """`phase` took `seconds`, beginning at `start` (a value of `time.perf_counter`)."""


class PhaseClock:
    """Adds up the wall-clock seconds spent in named phases; phases do not nest."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._watcher = Watcher()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the `with` block under `name`."""
        self._watcher.boundary(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self._watcher.boundary(name)
            seconds = time.perf_counter() - start
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
            self._watcher.span(name, start, seconds)

    def watch(self, watcher: Watcher) -> None:
        """Show `watcher` every phase from now on."""
        self._watcher = watcher

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds so far by phase."""
        return dict(self._seconds)

    def restore(self, seconds: dict[str, float]) -> None:
        """Resume from the seconds of an interrupted run."""
        self._seconds = {name: float(each) for name, each in seconds.items()}


def duration(seconds: float) -> str:
    """Seconds in the unit that fits: `3.2 s`, `45 s`, `10 min`, `2 h 05 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60:,} h {minutes % 60:02d} min"
