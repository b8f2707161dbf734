"""Ends the processes that a killed driver leaves behind, and removes their temporary folders.

Ray's processes notice the driver's death, but some of them first try to report it for a minute. This file runs as a
separate program, without Ray and the rest of this package. It records Ray's processes and their descendants while the
driver is alive, and kills those still running some seconds after its end.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

_POLL_S = 0.5
_POLL_STARTING_S = 0.1  # what starts between the last look and the driver's death is not found
_GRACE_S = 5.0
_STARTED = b"started"

Guardian = subprocess.Popen[bytes]
Descendants = dict[int, str]
"""Process ids and start times, which distinguish a process from a later one with the same id."""


def start() -> Guardian:
    """Guard the children that the caller starts before it calls `started`, until it ends or closes the input."""
    command = [sys.executable, "-I", "-S", __file__, *map(str, [os.getpid(), *_children(os.getpid())])]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def started(guardian: Guardian) -> None:
    """Report that there are no more children to guard."""
    assert guardian.stdin
    guardian.stdin.write(_STARTED)
    guardian.stdin.flush()


def folder_prefix(use: str) -> str:
    """How to name this process's temporary folders, so that the guardian finds them if the process is killed."""
    return f"sacglam-{use}-{os.getpid()}-"


def _children(pid: int) -> Descendants:
    return {child: started for child, (parent, started) in _running().items() if parent == pid}


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


def watch(driver: int, others: Sequence[int]) -> None:
    """Wait for the end of `driver` or of input, then end its children but `others`, and their descendants."""
    roots: Descendants = {}
    known: Descendants = {}
    starting = True
    while True:
        if starting:
            roots |= {pid: started for pid, started in _children(driver).items() if pid not in {os.getpid(), *others}}
        known |= {**roots, **descendants(*roots)}
        heard = select.select([sys.stdin], [], [], _POLL_STARTING_S if starting else _POLL_S)[0]
        if os.getppid() != driver or (heard and not os.read(sys.stdin.fileno(), len(_STARTED))):
            break
        starting = starting and not heard
    deadline = time.monotonic() + _GRACE_S
    while alive(known) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in alive(known):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for pid in known:
        for folder in Path(tempfile.gettempdir()).glob(f"sacglam-*-{pid}-*"):
            shutil.rmtree(folder, ignore_errors=True)


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
