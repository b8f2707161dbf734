"""Ends the processes that a killed driver leaves behind, and removes their temporary folders.

Ray's processes notice the driver's death, but some of them first try to report it for a minute. This file runs as a
separate program, without Ray and the rest of this package. It records Ray's processes and their descendants while the
driver is alive, and kills those still running some seconds after its end.
"""

import contextlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psutil

_POLL_S = 0.5
_POLL_STARTING_S = 0.1  # what starts between the last look and the driver's death is not found
_GRACE_S = 5.0
_STARTED = b"started"

Reaper = subprocess.Popen[bytes]


def start() -> Reaper:
    """Guard the children that the caller starts before it calls `started`, until it ends or closes the input."""
    others = [child.pid for child in psutil.Process().children()]
    command = [sys.executable, "-I", __file__, *map(str, [os.getpid(), *others])]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def started(reaper: Reaper) -> None:
    """Report that there are no more children to guard."""
    assert reaper.stdin
    reaper.stdin.write(_STARTED)
    reaper.stdin.flush()


def watch(driver: int, others: Sequence[int]) -> None:
    """Wait for the end of `driver` or of input, then end its children, except `others`, and their descendants."""
    known: set[psutil.Process] = set()
    starting = True
    while True:
        parents = {process.pid for process in known if process.is_running()}
        for process in psutil.process_iter(["ppid"]):  # in the order of ids, so that parents come first
            parent = process.info["ppid"]
            if parent in parents or (starting and parent == driver and process.pid not in {os.getpid(), *others}):
                known.add(process)
                parents.add(process.pid)
        heard = select.select([sys.stdin], [], [], _POLL_STARTING_S if starting else _POLL_S)[0]
        if os.getppid() != driver or (heard and not os.read(sys.stdin.fileno(), len(_STARTED))):
            break
        starting = starting and not heard
    for process in psutil.wait_procs(known, _GRACE_S)[1]:
        with contextlib.suppress(psutil.Error):
            process.kill()
    for process in known:
        for folder in Path(tempfile.gettempdir()).glob(f"sacglam-*-{process.pid}-*"):
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    watch(int(sys.argv[1]), [int(other) for other in sys.argv[2:]])
