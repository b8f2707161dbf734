"""Ends what a killed driver leaves behind.

Ray's own processes notice the driver's death, but some of them try to report it for a minute first. This file runs as a
program of its own, without Ray and without this package's other modules: it notes the driver's descendants while the
driver lives, and once that is gone gives them a moment and kills those that remain.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

_LOOK_EVERY_S = 1.0
_GRACE_S = 5.0

Descendants = dict[int, str]
"""Process ids with the time each was started, which tells a process from a later one with the same id."""


def start() -> subprocess.Popen[bytes]:
    """Guard the calling process: until it ends, however it ends, or closes the guardian's input."""
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid())]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def descendants(pid: int) -> Descendants:
    """All processes below `pid`, but for the caller."""
    children = defaultdict(list)
    started = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end while it is looked at
            state, parent, *rest = (folder / "stat").read_text().rpartition(")")[2].split()
            if state != "Z":
                children[int(parent)].append(int(folder.name))
                started[int(folder.name)] = rest[17]
    found = list(children[pid])
    for child in found:  # grows as it goes
        found += children[child]
    return {child: started[child] for child in found if child != os.getpid()}


def alive(known: Descendants) -> list[int]:
    """Those of `known` that still run."""
    found = []
    for pid, start_time in known.items():
        with contextlib.suppress(OSError):
            state, _, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if state != "Z" and rest[17] == start_time:
                found.append(pid)
    return found


def watch(driver: int) -> None:
    """Wait for the end of input, then end what is left of `driver`'s descendants."""
    known: Descendants = {}
    while not select.select([sys.stdin], [], [], _LOOK_EVERY_S)[0]:
        known |= descendants(driver)
    deadline = time.monotonic() + _GRACE_S
    while alive(known) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in alive(known):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    watch(int(sys.argv[1]))
