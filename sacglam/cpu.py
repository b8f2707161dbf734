"""Settings of the process that make small tensor programs fast on CPUs."""

from __future__ import annotations

import ctypes
import os

import torch

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_MOST_DEFAULT_THREADS = 4  # small models gain nothing from more, and lose much when cores are shared


def cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def default_threads() -> int:
    """Threads for the tensor library where none are asked for: the cores this process may use, 4 at most."""
    return min(_MOST_DEFAULT_THREADS, cores())


def prepare(threads: int) -> None:
    """Set the thread count and let the C library keep freed memory.

    By default glibc returns every large tensor to the kernel and faults its pages in again at the next operation:
    about a sixth of an update's time with the built-in model.
    """
    torch.set_num_threads(threads)
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:  # not glibc; nothing is lost but that time
        return
    libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    libc.mallopt(_M_TOP_PAD, 64 << 20)
