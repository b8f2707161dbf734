"""From log-probabilities to decisions."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from sacglam.config.sections import MOST_SCORE_WEIGHT
from sacglam.types import LogPolicy

Policy = Callable[[LogPolicy], int]
"""Chooses an action index, given the log-probabilities of all actions."""
_HIGHEST_TEMPERATURE = 1e3
_SCORES_IN_Q = 0.03


def greedy(log_pi: LogPolicy) -> int:
    """The most probable action; the first one if tied."""
    return int(np.argmax(log_pi))


@dataclass(frozen=True)
class SamplingPolicy:
    """Samples actions from pi, drawing one uniform number per decision from `rng`, which is saved with the run."""

    rng: np.random.Generator

    def __call__(self, log_pi: LogPolicy) -> int:
        """Inverse transform sampling in double precision; plain Python is fast enough for so few actions."""
        cumulative = list(accumulate(math.exp(value) for value in log_pi.tolist()))
        return min(bisect_right(cumulative, self.rng.random() * cumulative[-1]), len(cumulative) - 1)


def mean_entropy(policies: Sequence[LogPolicy], temperature: float = 1.0) -> float:
    """Mean over states of the entropy of softmax(log pi / temperature), in nats. It rises with the temperature."""
    entropies = []
    for log_pi in policies:
        score = log_pi.astype(np.float64) / temperature
        log_p = score - np.logaddexp.reduce(score)
        entropies.append(-(np.exp(log_p) * log_p).sum())
    return float(np.mean(entropies))


def uniform_entropy(policies: Sequence[LogPolicy]) -> float:
    """Mean over states of ln |A|, the entropy of the random policy, in nats."""
    return float(np.mean([math.log(len(log_pi)) for log_pi in policies]))


def opening_temperature(policies: Sequence[LogPolicy], share: float) -> float:
    """The lowest temperature from 1 to 1,000 at which mean entropy reaches `share` of the random policy's.

    Rounded to three digits to hide rounding differences between machines. `policies` have temperature 1.
    """
    target = share * uniform_entropy(policies)
    if mean_entropy(policies) >= target:
        return 1.0
    low, high = 0.0, math.log(_HIGHEST_TEMPERATURE)
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_entropy(policies, math.exp(middle)) < target else (low, middle)
    return float(f"{math.exp(high):.3g}")


def opening_score_weight(policies: Sequence[LogPolicy], temperature: float) -> float:
    """The weight w of scores in Q with which they add 0.03 to it: the standard deviation over a state's actions.

    At most 0.2, and rounded to three digits. `policies` have temperature 1. Far larger, the term would outweigh what
    an action gains: the policy would confirm its own opinions.
    """
    spread = float(np.mean([log_pi.astype(np.float64).std() for log_pi in policies])) / temperature
    return float(f"{_SCORES_IN_Q / max(spread, _SCORES_IN_Q / MOST_SCORE_WEIGHT):.3g}")
