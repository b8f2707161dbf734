"""Reports on stderr a call to an environment that does not return: from outside, slow and stuck look the same."""

import sys
import time
import traceback
from collections.abc import Callable
from itertools import takewhile
from threading import Thread, get_ident
from typing import Any

PATIENCE_S = 60.0
_Call = tuple[float, Callable[..., str], tuple[Any, ...]]
_CALLS: dict[int, _Call] = {}
"""By thread: when its current call began, and what names that call."""
_threads: list[Thread] = []


def begin(name: Callable[..., str], *given: Any) -> None:
    """This thread calls an environment; `name(*given)` describes the call if it has to be reported."""
    _CALLS[get_ident()] = (time.monotonic(), name, given)
    if not _threads:
        _threads.append(Thread(target=_watch, daemon=True))
        _threads[0].start()


def end() -> None:
    """The call has returned."""
    _CALLS.pop(get_ident(), None)


def _watch() -> None:
    said: _Call | None = None
    while True:
        time.sleep(PATIENCE_S / 4)
        for thread, call in list(_CALLS.items()):
            since, name, given = call
            if call is not said and time.monotonic() - since > PATIENCE_S:
                said = call
                late = f"{name(*given)}: it has not returned for {PATIENCE_S:g} s; still waiting. It is at:"
                if sys.stderr:  # else print takes stdout
                    print(f"{late}\n{_stack(thread)}", file=sys.stderr)


def _stack(thread: int) -> str:
    """The frames of a thread below the caller of the environment, outermost first."""
    frames = traceback.walk_stack(sys._current_frames().get(thread))
    own = takewhile(lambda frame: frame[0].f_globals.get("__package__") != __package__, frames)
    return "".join(reversed(traceback.StackSummary.extract(own).format())).rstrip()
