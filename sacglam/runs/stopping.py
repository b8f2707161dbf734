"""Treats SIGINT and SIGTERM as requests to stop cleanly."""

import os
import signal
from contextlib import suppress
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """Raised to cut work short after a stop request; like KeyboardInterrupt, it is not an `Exception`."""


def die_on_interrupt() -> None:
    """Let SIGINT end this process as the system does, at once and even in C code, except inside a `StopSignal`.

    While libraries are importing or starting, a KeyboardInterrupt would show a traceback or get lost in one of their
    handlers. Processes they leave behind must be ended elsewhere (`sacglam.runtime.reaper`).
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class StopSignal:
    """Inside the context, the first SIGINT or SIGTERM sets `requested`; a second one has its usual effect.

    The first is answered with `answer` on stderr, since what is under way may take a while to end. Outside the main
    thread, signals cannot be handled and `requested` stays false.
    """

    def __init__(self, answer: str = "") -> None:
        self.requested = False
        self._answer = answer.encode()
        self._previous: dict[signal.Signals, Any] = {}

    def check(self) -> None:
        """Raise `Stopped` if a stop was requested."""
        if self.requested:
            raise Stopped

    def __enter__(self) -> Self:
        with suppress(ValueError):  # not the main thread
            self._previous = {number: signal.signal(number, self._request) for number in _SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()
        with suppress(OSError):  # stderr is closed
            os.write(2, self._answer)  # the signal may have interrupted a print

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
