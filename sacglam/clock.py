"""Where the time goes: seconds by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class PhaseClock:
    """Adds up the wall-clock seconds spent in named phases; phases do not nest."""

    def __init__(self) -> None:
        """All phases at zero."""
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the `with` block under `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds so far by phase."""
        return dict(self._seconds)

    def restore(self, seconds: dict[str, float]) -> None:
        """Go on from the seconds of an interrupted run."""
        self._seconds = dict(seconds)
