"""Memory as the system reports it: a tensor of known size shows, also where memory was freed before."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from sacglam import cpu
from sacglam.errors import OutOfMemory, memory_explained
from sacglam.memory import free_bytes, peak_bytes, resident_bytes, total_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="on a CPU only Linux reports it")
MIB = 2**20


def test_a_peak_is_found_each_time() -> None:
    for _ in range(2):
        peak = peak_bytes(lambda: torch.ones(64 * MIB // 4), "cpu")
        assert peak is not None
        assert 60 * MIB < peak < 80 * MIB
    assert (peak_bytes(lambda: None, "cpu") or 0) < 8 * MIB


def test_this_process_is_a_part_of_the_machine() -> None:
    resident, free, total = resident_bytes(), free_bytes("cpu"), total_bytes("cpu")
    assert resident is not None
    assert free is not None
    assert 10 * MIB < resident < total
    assert 0 < free < total


@pytest.mark.parametrize(
    ("limit", "stat", "total", "free"),
    [
        ("1000", "anon 500\nfile 400\nshmem 50\ninactive_anon 30", 1000, 450),
        ("1000", "", 1000, 1000),
        ("max", "anon 550", 5000, 4000),
        ("9000", "anon 10", 5000, 4000),
        ("", "", 5000, 4000),
    ],
)
def test_a_control_group_limits_what_there_is(
    limit: str, stat: str, total: int, free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine of 5,000 bytes, of which 4,000 are free."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=5000, available=4000))
    monkeypatch.setattr(cpu, "_CGROUP", tmp_path)
    for name, text in {"max": limit, "stat": stat}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert (total_bytes("cpu"), free_bytes("cpu")) == (total, free)


def test_what_torch_keeps_of_a_gpu_for_reuse_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 80 bytes 25 are the system's to give; of the 50 that torch has taken, 20 are in use."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (25, 80))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 50)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
    assert free_bytes("cuda") == 55


@pytest.mark.parametrize(
    "allocate", [lambda: torch.empty(1 << 56), lambda: np.empty(1 << 56), lambda: bytearray(1 << 56)]
)
def test_too_little_memory_says_what_to_lower(allocate: Callable[[], object]) -> None:
    said = r"(?s)the machine has too little memory: .*algo.micro_batch_size"
    with pytest.raises(OutOfMemory, match=said), memory_explained():
        allocate()


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(KeyError), memory_explained():
        raise KeyError("a")
