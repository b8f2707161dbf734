"""Objects called in the same way wherever they live: in this process, or in others (`sacglam.runtime.ray`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sacglam.errors import SacglamError

_POLL_S = 0.5
_GRACE_S = 3.0


class WorkerLost(SacglamError):
    """A worker's process is gone, or does not answer."""


class StillRunning(Exception):
    """There is no result within the time given."""


class Pending(Protocol):
    """A result to come."""

    def result(self, timeout_s: float | None = None) -> Any:
        """The result; raises what the call raised, `WorkerLost`, or `StillRunning` after `timeout_s`."""


class Worker(Protocol):
    """Something that runs an object's methods, one after the other in the order they were submitted."""

    def submit(self, method: str, *args: Any, reply: bool = True) -> Pending:
        """Call `method`; without `reply` its result stays there, and None comes back."""

    def check(self) -> None:
        """Raise `WorkerLost` if the worker is known to be dead; never waits."""

    def kill(self) -> None:
        """End the worker at once, whatever it is doing."""


@dataclass(frozen=True)
class Done:
    """A result that is there."""

    value: Any

    def result(self, timeout_s: float | None = None) -> Any:
        """The value."""
        return self.value


class LocalWorker:
    """An object of this process; a call runs when it is submitted."""

    def __init__(self, target: Any) -> None:
        """`target`'s methods are what is called."""
        self._target = target

    def submit(self, method: str, *args: Any, reply: bool = True) -> Done:
        """Call `method` now."""
        return Done(getattr(self._target, method)(*args))

    def check(self) -> None:
        """Nothing: it lives as long as this process."""

    def kill(self) -> None:
        """Nothing: the object goes when it is let go."""


def gather(pending: Sequence[Pending], timeout_s: float, tick: Callable[[], None] = lambda: None) -> list[Any]:
    """All results, in order; `tick` is called now and then while they are waited for, and may raise to give up.

    When one worker dies, those that wait for it fail after it or hang; what is raised is the first cause, not the echo.

    Raises:
        WorkerLost: a worker died, or has not answered within `timeout_s`.
    """
    results: dict[int, Any] = {}
    deadline = time.monotonic() + timeout_s
    while len(results) < len(pending):
        for index, each in enumerate(pending):
            if index in results:
                continue
            try:
                results[index] = each.result(_POLL_S)
            except StillRunning:
                tick()
                if time.monotonic() > deadline:
                    raise WorkerLost(f"worker {index} gave no answer in {timeout_s:.0f} s") from None
            except Exception as error:
                raise _first_cause(pending, error) from error
    return [results[index] for index in range(len(pending))]


def _first_cause(pending: Sequence[Pending], seen: Exception) -> Exception:
    """Of all workers' failures the most telling: a death before an error meant for the user before any other."""
    failures = [seen]
    deadline = time.monotonic() + _GRACE_S
    for each in pending:
        try:
            each.result(max(0.0, deadline - time.monotonic()))
        except StillRunning:
            pass
        except Exception as error:
            failures.append(error)
    return min(failures, key=lambda e: 0 if isinstance(e, WorkerLost) else 1 if isinstance(e, SacglamError) else 2)
