"""SIGINT and SIGTERM as a request to end cleanly."""

import os
import signal
import threading
from types import FrameType
from typing import Any, Self

_INTERRUPTED = b"stopped at once; a run that has begun continues with sacglam train --resume RUN\n"
_SHOW_CURSOR = b"\x1b[?25h"  # a progress bar may have hidden it


class Stopped(BaseException):
    """Raised where work is cut short because a stop was requested; as KeyboardInterrupt, no `Exception`."""


def exit_on_interrupt() -> None:
    """From now on, SIGINT ends this process at once, with a line and exit code 130, except in a `StopSignal`.

    While libraries are imported or start, a KeyboardInterrupt shows a traceback or is lost in one of their handlers.
    What they leave behind must be ended by others (`sacglam.runtime.guardian`).
    """

    def handler(number: int, frame: FrameType | None) -> None:
        """Waits until the main thread is back in Python: minutes if Ray cannot start. So a thread acts."""

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
    """While entered, the first SIGINT or SIGTERM sets `requested`; a second one has its usual effect.

    Outside the main thread signals cannot be handled, and `requested` stays false.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[signal.Signals, Any] = {}
        self._wakeup = -1

    def check(self) -> None:
        """Give up if a stop was requested.

        Raises:
            Stopped: it was.
        """
        if self.requested:
            raise Stopped

    def __enter__(self) -> Self:
        try:
            self._wakeup = signal.set_wakeup_fd(-1)  # else the first signal may be taken for the second
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
        if self._previous:
            signal.set_wakeup_fd(self._wakeup)
        self._previous = {}
