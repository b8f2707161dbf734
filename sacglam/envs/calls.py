"""Calls of an environment's own code: errors name the call, and one that does not return is reported on stderr."""

import math
import os
import sys
import time
import traceback
from collections.abc import Callable
from itertools import takewhile
from threading import Thread, get_ident
from typing import Any

from sacglam.errors import EnvironmentContractError, SacglamError, as_text

PATIENCE_S = 60.0
_calls: dict[int, "Call"] = {}  # under way, by thread
_threads: list[Thread] = []


class Call:
    """A context for one call of an environment's own code.

    Raises:
        EnvironmentContractError: the code raised something, `SystemExit` included: an environment must not end the
            training. It names the call and holds the code's traceback. `SacglamError` and Ctrl-C pass through.
    """

    def __init__(self, name: Callable[..., str], *given: Any) -> None:
        """`name(*given)` describes the call if it has to be reported."""
        self._name, self._given = name, given
        self.began, self._process = time.monotonic(), os.getpid()

    def __str__(self) -> str:
        return self._name(*self._given)

    def __enter__(self) -> None:
        self._outer = _calls.get(get_ident())  # an environment may make another one in its own code
        _calls[get_ident()] = self
        if not _threads:
            _threads.append(Thread(target=_watch, daemon=True))
            _threads[0].start()

    def __exit__(self, kind: object, error: BaseException | None, trace: Any) -> None:
        _calls.pop(get_ident(), None)
        if self._outer:
            _calls[get_ident()] = self._outer
        if os.getpid() != self._process:  # a child forked by the environment would train as well
            print(f"{self}: it forked, and the child returned; end it with os._exit", file=sys.stderr)
            os._exit(1)
        if error is None or isinstance(error, (SacglamError, KeyboardInterrupt)):
            return
        said = as_text(traceback.format_exception(type(error), error, trace.tb_next))
        raise EnvironmentContractError(f"{self}: it raised {type(error).__name__}\n{said}") from error


def _watch() -> None:
    """Report each call that takes too long, once: from outside, slow and stuck look the same."""
    while True:
        time.sleep(PATIENCE_S / 4)
        for thread, call in list(_calls.items()):
            if time.monotonic() - call.began > PATIENCE_S:
                call.began = math.inf  # reported
                late = f"{call}: it has not returned for {PATIENCE_S:g} s; still waiting. It is at:"
                if sys.stderr:  # otherwise print uses stdout
                    print(f"{late}\n{_stack(thread)}", file=sys.stderr)


def _stack(thread: int) -> str:
    """The frames of a thread below the caller of the environment, outermost first."""
    frames = traceback.walk_stack(sys._current_frames().get(thread))
    own = takewhile(lambda frame: frame[0].f_globals.get("__package__") != __package__, frames)
    return "".join(reversed(traceback.StackSummary.extract(own).format())).rstrip()
