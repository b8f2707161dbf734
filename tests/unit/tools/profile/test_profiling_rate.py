"""The rate of matrix products, on a clock that the test winds itself."""

from __future__ import annotations

import time
from itertools import count

import pytest
import torch

from sacglam.tools.profile.rate import matmul_rate


def test_every_matrix_counts_with_the_time_of_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[None] = []
    ticks = count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))  # every product takes a second
    matrices = [torch.zeros(3, 2), torch.zeros(5, 4), torch.zeros(3, 2)]
    assert matmul_rate(matrices, lambda: waits.append(None)) == 2 * 4096 * (6 + 20 + 6) / 3
    assert len(waits) == 2 * 7 * 2, "the device is waited for before and after each timing"


def test_a_fast_product_is_repeated_until_the_clock_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    product = torch.mm

    def slow(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        now[0] += 0.003
        return product(x, y)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(torch, "mm", slow)
    assert matmul_rate([torch.zeros(3, 2)], lambda: None) == pytest.approx(2 * 4096 * 6 / 0.003)
    assert now[0] == pytest.approx((2 + 5 * 7) * 0.003), "two to begin with, then five times 7, which exceed 20 ms"
