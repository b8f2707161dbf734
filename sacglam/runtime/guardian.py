"""Ends the processes that a killed driver leaves behind.

Ray's processes notice the driver's death, but some of them first try to report it for a minute. This file runs as a
separate program, without Ray and the rest of this package. It records Ray's processes and their descendants while the
driver is alive, and kills those still running some seconds after its end.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

_POLL_S = 0.5
_GRACE_S = 5.0

Guardian = subprocess.Popen[bytes]
Descendants = dict[int, str]
"""Process ids and start times, which distinguish a process from a later one with the same id."""


def start(roots: set[int]) -> Guardian:
    """Guard `roots`, children of the caller, until the caller ends or closes the guardian's input."""
    command = [sys.executable, "-I", "-S", __file__, *map(str, [os.getpid(), *roots])]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def children(pid: int) -> set[int]:
    """The direct children of `pid`; none where there is no /proc."""
    return {child for child, (parent, _) in _running().items() if parent == pid}


def descendants(*roots: int) -> Descendants:
    """All processes below `roots`."""
    running = _running()
    by_parent = defaultdict(list)
    for child, (parent, _) in running.items():
        by_parent[parent].append(child)
    found = [child for root in roots for child in by_parent[root]]
    for child in found:  # grows meanwhile
        found += by_parent[child]
    return {child: running[child][1] for child in found}


def alive(known: Descendants) -> list[int]:
    """The processes of `known` that are still running."""
    running = _running()
    return [pid for pid, started in known.items() if pid in running and running[pid][1] == started]


def watch(driver: int, roots: Sequence[int]) -> None:
    """Wait for the end of `driver` or of input, then end `roots` and their descendants."""
    running = _running()
    known = {root: running[root][1] for root in roots if root in running}
    while True:
        known |= descendants(*roots)  # all at once, since it reads the state of every process of the machine
        if os.getppid() != driver or select.select([sys.stdin], [], [], _POLL_S)[0]:
            break
    deadline = time.monotonic() + _GRACE_S
    while alive(known) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in alive(known):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _running() -> dict[int, tuple[int, str]]:
    """Parent and start time of every process that is not a zombie."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process may just have ended
            state, parent, *rest = (folder / "stat").read_text().rpartition(")")[2].split()
            if state != "Z":
                found[int(folder.name)] = (int(parent), rest[17])
    return found


if __name__ == "__main__":
    watch(int(sys.argv[1]), [int(root) for root in sys.argv[2:]])
