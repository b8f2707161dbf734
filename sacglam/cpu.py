"""The CPU: its name, the cores that this process may use, and settings that make small tensor programs fast."""

import ctypes
import os
import platform
import re
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_MOST_DEFAULT_THREADS = 4  # small models gain nothing from more, and lose much when cores are shared


def cores() -> int:
    """How many cores this process may use: its affinity, or fewer if a control group has a quota."""
    affinity = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min([affinity, *_quotas()])


def default_threads() -> int:
    """Threads unless configured: one for each core, at most 4, and at most OMP_NUM_THREADS."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(_MOST_DEFAULT_THREADS, cores(), max(1, int(limit)) if limit.isdecimal() else cores())


def _quotas() -> list[int]:
    """Quotas of this process's control groups, in whole cores, at least 1."""
    limits = [text.split() for text in in_control_groups("cpu.max")]  # `quota period`, or `max period`
    return [max(1, int(limit[0]) // int(limit[1])) for limit in limits if limit and limit[0] != "max"]


def in_control_groups(file: str) -> list[str]:
    """What `file` says in this process's control group (version 2) and in those above it; empty where there is none."""
    own = re.search(r"^0::/(.*)$", _read(Path("/proc/self/cgroup")), re.MULTILINE)
    folder = _CGROUP / own[1] if own else _CGROUP
    folders = [folder, *(above for above in folder.parents if above.is_relative_to(_CGROUP))]
    return [_read(each / file) for each in folders]


def seconds(others: Iterable[int] = ()) -> float:
    """CPU seconds so far of this process and of the processes `others`; one that has ended counts as 0."""
    total = time.process_time()
    for pid in others:
        with suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


def model() -> str:
    """The CPU's name, or the architecture where Linux does not report one."""
    name = re.search(r"^model name\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    return name[1] if name else platform.machine()


def prepare(threads: int) -> None:
    """Set torch's thread count and make the C library keep freed memory.

    By default glibc returns every large tensor to the kernel and faults its pages in again at the next operation:
    about a sixth of an update's time with the built-in model.
    """
    import torch  # here, so that counting cores does not load it

    torch.set_num_threads(threads)
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:  # not glibc; only that time is lost
        return
    libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    libc.mallopt(_M_TOP_PAD, 64 << 20)


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
