"""From log-probabilities to an action: frequencies, the unit interval's edges, one draw a decision; temperatures."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacglam.policy import (
    SamplingPolicy,
    greedy,
    mean_entropy,
    opening_score_weight,
    opening_temperature,
    uniform_entropy,
)
from sacglam.types import LogPolicy

LARGEST_BELOW_ONE = 1.0 - 2.0**-53  # the largest number that Generator.random() gives


def _log_policy(*probabilities: float) -> LogPolicy:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(probabilities), dtype=np.float32)


class Drawn:
    """A generator that draws one known number."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self) -> float:
        return self.number


def _sample_at(number: float, log_pi: LogPolicy) -> int:
    return SamplingPolicy(cast(np.random.Generator, Drawn(number)))(log_pi)


def test_greedy_takes_the_most_probable() -> None:
    assert greedy(_log_policy(0.2, 0.5, 0.3)) == 1
    assert greedy(_log_policy(1.0)) == 0


def test_greedy_takes_the_first_of_equals() -> None:
    assert greedy(_log_policy(0.2, 0.4, 0.4)) == 1
    assert greedy(_log_policy(0.25, 0.25, 0.25, 0.25)) == 0


def test_actions_are_indices_as_plain_integers() -> None:
    assert type(greedy(_log_policy(0.5, 0.5))) is int
    assert type(_sample_at(0.3, _log_policy(0.5, 0.5))) is int


@pytest.mark.parametrize(
    ("number", "action"), [(0.0, 0), (0.249, 0), (0.251, 1), (0.749, 1), (0.751, 2), (LARGEST_BELOW_ONE, 2)]
)
def test_sampling_by_hand(number: float, action: int) -> None:
    # Cumulative probabilities 1/4, 3/4, 1.
    assert _sample_at(number, _log_policy(0.25, 0.5, 0.25)) == action


def test_frequencies_are_the_probabilities() -> None:
    probabilities = (0.5, 0.1, 0.0, 0.4)
    policy = SamplingPolicy(np.random.default_rng(0))
    log_pi = _log_policy(*probabilities)
    counts = np.bincount([policy(log_pi) for _ in range(20_000)], minlength=4)
    # Four standard deviations of the most variable count: 4 sqrt(20000 * 0.25) = 283.
    assert counts.tolist() == pytest.approx([20_000 * p for p in probabilities], abs=283)
    assert counts[2] == 0


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(-120, 0) | st.just(-np.inf), min_size=1, max_size=8), st.floats(0, LARGEST_BELOW_ONE))
def test_it_never_takes_an_action_of_probability_zero(logits: list[float], number: float) -> None:
    logits[len(logits) // 2] = 0.0  # at least one is possible
    raw = np.array(logits)
    log_pi = (raw - np.log(np.exp(raw).sum())).astype(np.float32)
    for drawn in (number, 0.0, LARGEST_BELOW_ONE):
        assert log_pi[_sample_at(drawn, log_pi)] > -np.inf


@pytest.mark.parametrize("actions", [1, 2, 9])
def test_each_decision_draws_one_number(actions: int) -> None:
    policy = SamplingPolicy(np.random.default_rng(3))
    reference = np.random.default_rng(3)
    for _ in range(5):
        policy(_log_policy(*[1 / actions] * actions))
        reference.random()
        assert policy.rng.bit_generator.state == reference.bit_generator.state


def test_entropy_by_hand() -> None:
    # Odds of 9 to 1; at temperature 2 of 3 to 1: H = -(3/4 ln 3/4 + 1/4 ln 1/4) = 0.562335. One action has no entropy.
    policies = [_log_policy(0.9, 0.1), _log_policy(1.0)]
    assert mean_entropy(policies, 2.0) == pytest.approx(0.562335 / 2, abs=1e-6)
    assert mean_entropy(policies) == pytest.approx(-(0.9 * math.log(0.9) + 0.1 * math.log(0.1)) / 2, abs=1e-6)
    assert uniform_entropy(policies) == pytest.approx(math.log(2) / 2)


def test_the_opening_temperature_by_hand() -> None:
    # Scores 40 ln 3 apart are odds of 3 to 1 at temperature 40, an entropy of 0.562335 / ln 2 = 0.811278 of the most.
    apart = np.array([-40 * math.log(3), 0.0], dtype=np.float32)
    assert opening_temperature([apart], 0.811278) == 40.0
    assert opening_temperature([apart, _log_policy(1.0)], 0.811278) == 40.0


def test_a_policy_that_is_open_already_keeps_temperature_1() -> None:
    assert opening_temperature([_log_policy(0.4, 0.6)], 0.5) == 1.0
    assert opening_temperature([_log_policy(1.0)], 0.5) == 1.0  # there is nothing to choose


@pytest.mark.parametrize(
    ("probabilities", "temperature", "expected"),
    [
        ([(0.9, 0.1)], 1.0, 0.0273),  # ln 9 apart, a standard deviation of 1.0986
        ([(0.9, 0.1)], 4.0, 0.109),
        ([(0.9, 0.1), (0.5, 0.5)], 1.0, 0.0546),
        ([(0.5, 0.5)], 1.0, 0.2),
        ([(0.55, 0.45)], 1.0, 0.2),  # 0.1003
        ([(1.0,)], 1.0, 0.2),
    ],
)
def test_the_opening_weight_of_scores_by_hand(
    probabilities: list[tuple[float, ...]], temperature: float, expected: float
) -> None:
    assert opening_score_weight([_log_policy(*each) for each in probabilities], temperature) == expected


_scores = st.lists(st.floats(-1e3, 0.0, width=32), min_size=1, max_size=6)


@given(st.lists(_scores, min_size=1, max_size=4), st.floats(0.05, 0.95))
def test_the_opening_temperature_reaches_the_share_and_is_the_least_that_does(
    scores: list[list[float]], share: float
) -> None:
    policies = [np.array(row, dtype=np.float32) for row in scores]
    entropies = [mean_entropy(policies, temperature) for temperature in (1, 3, 10, 100, 1000)]
    assert all(after >= before - 1e-9 for before, after in pairwise(entropies))
    found, target = opening_temperature(policies, share), share * uniform_entropy(policies)
    assert found == 1000.0 or mean_entropy(policies, 1.006 * found) >= target - 1e-9  # three digits
    assert found == 1.0 or mean_entropy(policies, 0.994 * found) <= target
