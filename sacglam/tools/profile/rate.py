"""How fast this machine multiplies matrices of a model's shapes: the bound that a profile is held against."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_ROWS, _REPEATS = 4096, 5
_LEAST_SECONDS = 0.02  # of one timing, so that neither the timer nor waiting for a device weighs


@torch.no_grad()
def matmul_rate(matrices: Sequence[Tensor], synchronise: Callable[[], None]) -> float:
    """FLOP per second of (4096, k) x (k, n) products, over all of `matrices` (n, k) in their own type and place.

    Of each shape the fastest of five timings counts: other programs of the machine can only slow one down.
    """
    flop, seconds = 0, 0.0
    for (outputs, inputs), count in Counter((m.shape[0], m.shape[1]) for m in matrices).items():
        weight = next(m for m in matrices if m.shape == (outputs, inputs))
        x = torch.ones(_ROWS, inputs, dtype=weight.dtype, device=weight.device)
        seconds += count * _seconds_of_one(x, weight, synchronise)
        flop += count * 2 * _ROWS * inputs * outputs
    return flop / seconds


def _seconds_of_one(x: Tensor, weight: Tensor, synchronise: Callable[[], None]) -> float:
    _time(x, weight, 1, synchronise)  # the first one starts libraries up
    times = math.ceil(_LEAST_SECONDS / _time(x, weight, 1, synchronise))
    return min(_time(x, weight, times, synchronise) for _ in range(_REPEATS)) / times


def _time(x: Tensor, weight: Tensor, times: int, synchronise: Callable[[], None]) -> float:
    synchronise()
    start = time.perf_counter()
    for _ in range(times):
        torch.mm(x, weight.T)
    synchronise()
    return time.perf_counter() - start
