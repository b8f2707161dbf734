"""Memory of this process or its GPU: what a piece of work takes at its peak, and what is left."""

import contextlib
import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import psutil
import torch

from sacglam import cpu

CPU_CACHE_BYTES = 1 << 30
"""Prefix cache of a vLLM engine without a GPU."""
_MOST_STATES_BYTES = 2 << 30  # thousands of states of a small model; more would hardly recur


def peak_bytes(run: Callable[[], object], device: str) -> int | None:
    """Bytes that `run` adds at its peak: allocated on a GPU; on a CPU, resident in this process.

    None where the system does not report it: on a CPU only Linux does.
    """
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)  # weights
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # else the peak would hide in freed memory that the process still holds
    before = resident_bytes()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    except OSError:
        run()
        return None
    run()
    peak_kib = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return max(0, int(peak_kib[1]) * 1024 - before) if peak_kib else None


def resident_bytes() -> int:
    """Bytes that this process holds now."""
    return int(psutil.Process().memory_info().rss)


def free_bytes(device: str) -> int:
    """Bytes still free on `device`."""
    if device.startswith("cuda"):
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, for reuse
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    return min([psutil.virtual_memory().available, *(limit - used for limit, used in _limits())])


def kept_states_bytes() -> int:
    """Limit in bytes on the hidden states that a process on a CPU keeps: a quarter of free memory, at most 2 GiB."""
    return min(_MOST_STATES_BYTES, free_bytes("cpu") // 4)


def total_bytes(device: str) -> int:
    """Bytes of all memory of the GPU `device`, or else of the machine or this process's share of it."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[1])
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _limits())])


def _limits() -> list[tuple[int, int]]:
    """Limit of each control group of this process that has one, and what its processes hold, without cached files."""
    limits, stats = map(cpu.in_control_groups, ("memory.max", "memory.stat"))
    held = [sum(map(int, re.findall(r"^(?:anon|shmem) (\d+)$", stat, re.MULTILINE))) for stat in stats]
    return [(int(limit), used) for limit, used in zip(limits, held, strict=True) if limit.isdigit()]
