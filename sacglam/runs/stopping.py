"""SIGINT and SIGTERM as a request to end cleanly."""

import signal
from types import FrameType
from typing import Any, Self


class Stopped(Exception):
    """Raised where work is cut short because a stop was requested."""


class StopSignal:
    """While entered, the first SIGINT or SIGTERM sets `requested`; a second one has its usual effect.

    Outside the main thread signals cannot be handled, and `requested` stays false.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[signal.Signals, Any] = {}

    def check(self) -> None:
        """Give up if a stop was requested.

        Raises:
            Stopped: it was.
        """
        if self.requested:
            raise Stopped

    def __enter__(self) -> Self:
        try:
            self._previous = {number: signal.signal(number, self._request) for number in self._SIGNALS}
        except ValueError:  # not the main thread
            self._previous = {}
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
