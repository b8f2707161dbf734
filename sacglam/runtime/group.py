"""Calls to objects in this process or in others (`sacglam.runtime.ray`), with one interface."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from typing_extensions import override

from sacglam.errors import SacglamError

_POLL_S = 0.5
_GRACE_S = 3.0

Tick = Callable[[], None]
"""Called every now and then while waiting; may raise to cancel."""


class WorkerLost(SacglamError):
    """A worker's process has died or does not answer."""


class StillRunning(Exception):
    """The call has not returned within the time-out."""


class Pending(Protocol):
    """A call in progress."""

    def result(self, timeout_s: float | None = None) -> Any:
        """The call's result.

        Raises:
            StillRunning: there is none after `timeout_s`.
            WorkerLost: the worker has died.
            Exception: whatever the call raised.
        """


class Worker:
    """Runs the methods of one object, in the order of submission."""

    def submit(self, method: str, *args: Any, reply: bool = True) -> Pending:
        """Call `method`; without `reply` its result stays there, and None comes back."""
        raise NotImplementedError

    def shared(self, value: Any) -> Any:
        """An argument for calls to several workers of this kind, serialised once for all of them."""
        return value

    def check(self) -> None:
        """Raise `WorkerLost` if the worker is known to be dead; never waits."""

    def kill(self, hung: bool = True) -> None:
        """End the worker at once; by force, which Ray reports as a loss, if it may be `hung`."""


@dataclass(frozen=True)
class Done:
    """A call that has returned."""

    value: Any

    def result(self, timeout_s: float | None = None) -> Any:
        """The value."""
        return self.value


class LocalWorker(Worker):
    """Calls methods of an object in this process, at once."""

    def __init__(self, target: Any) -> None:
        self._target = target

    @override
    def submit(self, method: str, *args: Any, reply: bool = True) -> Done:
        return Done(getattr(self._target, method)(*args))


def gather(pending: Sequence[Pending], timeout_s: float, tick: Tick = lambda: None) -> list[Any]:
    """All results, in order.

    When one worker dies, those that depend on it fail later or hang; the first cause is raised, not its consequences.

    Raises:
        WorkerLost: a worker has died, or has not answered within `timeout_s`.
    """
    results: dict[int, Any] = {}
    deadline = time.monotonic() + timeout_s
    while len(results) < len(pending):
        for index, call in enumerate(pending):
            if index in results:
                continue
            try:
                results[index] = call.result(_POLL_S)
            except StillRunning:
                tick()
                if time.monotonic() > deadline:
                    silent = f" from worker {index}" if len(pending) > 1 else ""
                    raise WorkerLost(f"no answer in {timeout_s:.0f} s{silent}") from None
            except Exception as error:
                raise _first_cause(pending, error) from error
    return [results[index] for index in range(len(pending))]


def _first_cause(pending: Sequence[Pending], seen: Exception) -> Exception:
    """The most informative of all workers' failures: deaths before errors meant for the user before any other."""
    failures = [seen]
    deadline = time.monotonic() + _GRACE_S
    for call in pending:
        try:
            call.result(max(0.0, deadline - time.monotonic()))
        except StillRunning:
            pass
        except Exception as error:
            failures.append(error)
    return min(failures, key=lambda e: 0 if isinstance(e, WorkerLost) else 1 if isinstance(e, SacglamError) else 2)
