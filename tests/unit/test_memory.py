"""Memory as the system reports it: a tensor of known size shows, also where memory was freed before."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

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
