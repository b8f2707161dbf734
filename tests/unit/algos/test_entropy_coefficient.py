"""The entropy coefficient: which way it moves, where it rests, and that its state is whole."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacglam.algos.sac import EntropyCoefficient, Sac, SacConfig
from sacglam.algos.sac_settings import AlphaConfig
from sacglam.clock import PhaseClock
from sacglam.models.actor_critic import ActorCritic


def test_the_first_step_by_hand() -> None:
    # Adam's first step is lr * g / (|g| + 1e-8). Here g = 0.05 * (0.6 - 0.1) = 0.025, so log alpha falls by
    # 0.1 * 0.025 / (0.025 + 1e-8) = 0.1 but for 4e-8.
    temperature = EntropyCoefficient(init=0.05, lr=0.1)
    temperature.update(0.6, 0.1)
    assert temperature.alpha == pytest.approx(0.05 * math.exp(-0.1), rel=1e-6)


@pytest.mark.parametrize(("entropy", "moves"), [(0.4, -1), (0.1, 1), (0.2, 0)])
def test_it_moves_towards_the_target_entropy_and_rests_there(entropy: float, moves: int) -> None:
    temperature = EntropyCoefficient(init=0.05, lr=2e-3)
    before = temperature.alpha
    temperature.update(entropy, 0.2)
    assert (temperature.alpha > before) - (temperature.alpha < before) == moves


def test_a_target_of_zero_makes_it_fall_steadily() -> None:
    temperature = EntropyCoefficient(init=0.005, lr=2e-3)
    alphas = [temperature.alpha]
    for _ in range(50):
        temperature.update(0.3, 0.0)
        alphas.append(temperature.alpha)
    assert all(later < earlier for earlier, later in pairwise(alphas))


@pytest.mark.parametrize("init", [0.01, 5.0])
def test_it_leads_a_bandit_to_the_target_entropy(init: float) -> None:
    # SAC's optimum on a bandit with Q = (1, 0) is softmax(Q / alpha): p = 1 / (1 + exp(-1 / alpha)) of the better arm.
    def entropy_at(alpha: float) -> float:
        p = 1 / (1 + math.exp(-1 / alpha))
        return -p * math.log(p) - (1 - p) * math.log1p(-p) if p < 1 else 0.0

    temperature = EntropyCoefficient(init, lr=0.05)
    for _ in range(600):
        temperature.update(entropy_at(temperature.alpha), 0.3)
    assert entropy_at(temperature.alpha) == pytest.approx(0.3, abs=0.01)


def test_a_learning_rate_of_zero_keeps_it() -> None:
    temperature = EntropyCoefficient(init=0.05, lr=0.0)
    before = temperature.alpha
    assert before == pytest.approx(0.05)
    for entropy in (1.0, 0.0, 0.7):
        temperature.update(entropy, 0.01)
    assert temperature.alpha == before


@settings(deadline=None, max_examples=20)
@given(st.lists(st.floats(0, 2), max_size=5), st.lists(st.floats(0, 2), min_size=1, max_size=5))
def test_its_state_goes_on_bit_for_bit(before: list[float], after: list[float]) -> None:
    original = EntropyCoefficient(init=0.05, lr=0.01)
    for entropy in before:
        original.update(entropy, 0.3)
    restored = EntropyCoefficient(init=7.0, lr=0.01)
    restored.update(1.0, 0.3)  # what it learned itself must be gone
    restored.load_state(json.loads(json.dumps(original.state())))
    for entropy in after:
        original.update(entropy, 0.3)
        restored.update(entropy, 0.3)
        assert restored.alpha == original.alpha
    assert restored.state() == original.state()


@pytest.mark.parametrize("change", [{"log_alpha": None}, {"adam": {"step": 1.0}}, {"adam": {"exp_avg": 0.0, "x": 1.0}}])
def test_a_state_that_it_never_gave_is_refused(change: dict[str, Any]) -> None:
    temperature = EntropyCoefficient(init=0.05, lr=0.01)
    temperature.update(1.0, 0.3)
    with pytest.raises((TypeError, ValueError)):
        temperature.load_state({**temperature.state(), **change})


class NoTarget:
    """In place of a model: nothing follows its weights."""

    def update_target(self, tau: float, lerp: object) -> None:
        pass


@pytest.mark.parametrize(
    ("target", "lr_decay", "expected"),
    [
        # 25 % of 2 nats, times 1 - 0.9 t / 4 for t = 0..4, and no lower afterwards
        ("25%", True, [0.5, 0.3875, 0.275, 0.1625, 0.05, 0.05]),
        ("25%", False, [0.5] * 6),
        (0.3, True, [0.3] * 6),
    ],
)
def test_a_relative_target_falls_with_the_learning_rates(
    target: float | str, lr_decay: bool, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = []
    monkeypatch.setattr(EntropyCoefficient, "update", lambda self, entropy, target: targets.append(target))
    config = SacConfig(alpha=AlphaConfig(target_entropy=target), lr_decay=lr_decay, warmup_updates=0)
    sac = Sac(cast(ActorCritic, NoTarget()), config, 4, np.random.default_rng(0), PhaseClock())
    for update in range(6):
        sac.after_step({"entropy": 0.3, "random_entropy": 2.0}, update, lambda moving, towards, share: None)
    assert targets == pytest.approx(expected)
