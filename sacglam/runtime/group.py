"""Calls to objects in this process or in others (`sacglam.runtime.ray`), with one interface."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any

from sacglam.errors import SacglamError

_POLL_S = 0.5
_GRACE_S = 3.0

Tick = Callable[[], None]
"""Polled while waiting; may raise to abort."""


class WorkerLost(SacglamError):
    """A worker's process has died or does not answer."""


class Worker:
    """Runs the methods of one object in the order of submission. This class runs them at once, in this process."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def submit(self, method: str, *args: Any, reply: bool = True) -> "Future[Any]":
        """Call `method`; without `reply`, its result may not be sent back, and the future then returns None.

        The future raises `WorkerLost` if the worker has died, or whatever the call raised.
        """
        done: Future[Any] = Future()
        done.set_result(getattr(self._target, method)(*args))
        return done

    def shared(self, value: Any) -> Any:
        """An argument for calls to several workers of this kind, serialised once for all of them."""
        return value

    def kill(self) -> None:
        """End the worker at once, even if it hangs."""


def gather(calls: Sequence["Future[Any]"], timeout_s: float, tick: Tick = lambda: None) -> list[Any]:
    """All results, in order.

    When one worker dies, those that depend on it fail later or hang; the first cause is raised, not its consequences.

    Raises:
        WorkerLost: a worker has died, or has not answered within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        done, running = wait(calls, _POLL_S, FIRST_EXCEPTION)
        if any(call.exception() for call in done):
            failures = [error for call in wait(calls, _GRACE_S).done if (error := call.exception())]
            # A death comes first, then errors for the user, then any other.
            raise max(failures, key=lambda error: (isinstance(error, WorkerLost), isinstance(error, SacglamError)))
        if not running:
            return [call.result() for call in calls]
        tick()
        if time.monotonic() > deadline:
            silent = [index for index, call in enumerate(calls) if call in running]
            where = f" from worker {silent[0]}" if len(calls) > 1 else ""
            raise WorkerLost(f"no answer in {timeout_s:.0f} s{where}")
