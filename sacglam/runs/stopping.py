"""Treats SIGINT and SIGTERM as requests to stop cleanly."""

import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_INTERRUPTED = b"stopped at once; a run that has begun continues with sacglam train --resume RUN\n"
_SHOW_CURSOR = b"\x1b[?25h"  # a progress bar may have hidden it


class Stopped(BaseException):
    """Raised to cut work short after a stop request; like KeyboardInterrupt, it is not an `Exception`."""


def exit_on_interrupt() -> None:
    """Make SIGINT end this process at once, with a message and exit code 130, except inside a `StopSignal`.

    While libraries are importing or starting, a KeyboardInterrupt would show a traceback or get lost in one of their
    handlers. Processes they leave behind must be ended elsewhere (`sacglam.runtime.reaper`).
    """

    def handler(number: int, frame: FrameType | None) -> None:
        """Does nothing: it runs only once the main thread is back in Python, which may take minutes. A thread acts."""

    def watch() -> None:
        while signal.getsignal(number := os.read(arrived, 1)[0]) is not handler:
            pass
        if os.isatty(2):
            os.write(2, _SHOW_CURSOR)
        os.write(2, _INTERRUPTED)
        os._exit(128 + number)

    arrived, arrive = os.pipe()
    os.set_blocking(arrive, False)
    signal.signal(signal.SIGINT, handler)
    signal.set_wakeup_fd(arrive)
    threading.Thread(target=watch, daemon=True).start()


class StopSignal:
    """Inside the context, the first SIGINT or SIGTERM sets `requested`; a second one has its usual effect.

    The first is answered with `answer` on stderr, since what is under way may take a while to end. Outside the main
    thread, signals cannot be handled and `requested` stays false.
    """

    def __init__(self, answer: str = "") -> None:
        self.requested = False
        self._answer = answer.encode()
        self._previous: dict[signal.Signals, Any] = {}
        self._wakeup = -1

    def check(self) -> None:
        """Raise `Stopped` if a stop was requested."""
        if self.requested:
            raise Stopped

    def __enter__(self) -> Self:
        with suppress(ValueError):  # not the main thread
            self._wakeup = signal.set_wakeup_fd(-1)  # otherwise the first signal may be mistaken for the second
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
        if self._previous:
            signal.set_wakeup_fd(self._wakeup)
        self._previous = {}
