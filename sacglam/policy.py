"""From log-probabilities to decisions."""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from sacglam.types import LogPolicy

Policy = Callable[[LogPolicy], int]
"""Chooses one action, by its index, given the log-probabilities of all."""


def greedy(log_pi: LogPolicy) -> int:
    """The most probable action, the first in a tie."""
    return int(np.argmax(log_pi))


@dataclass(frozen=True)
class SamplingPolicy:
    """Samples actions from pi: one uniform number of `rng`, part of a run's random state, for each decision."""

    rng: np.random.Generator

    def __call__(self, log_pi: LogPolicy) -> int:
        """Inverse transform sampling, in double precision; plain Python, since actions are few."""
        cumulative = list(accumulate(math.exp(value) for value in log_pi.tolist()))
        return min(bisect_right(cumulative, self.rng.random() * cumulative[-1]), len(cumulative) - 1)
