"""PPO's samples, minibatches and losses, with a model whose policy and values are known."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from sacglam.algos.ppo import Ppo, PpoBatch, PpoConfig, Sample
from sacglam.clock import PhaseClock
from sacglam.models.actor_critic import ActorValue, PolicyAndV
from sacglam.prompt import query
from sacglam.types import Observation, Query, Window

ACTIONS = ("x", "y")
VALUES = {"s0": 0.2, "s1": 0.4, "s2": 0.6, "s3": 0.8}
LOG_PI = {"s0": (0.5, 0.5), "s1": (0.25, 0.75), "s2": (0.9, 0.1), "s3": (0.5, 0.5)}
CONFIG = PpoConfig(gamma=0.5, gae_lambda=0.8, epochs=2, batch_size=2, update_interval=4)


class Known:
    """Packs states as their texts, and looks their policy and value up."""

    prompt = query

    def __init__(self) -> None:
        self.seen: list[str] = []

    def pack(self, queries: Sequence[Query]) -> list[str]:
        return [_text(query) for query in queries]

    def tensor(self, values: Sequence[float], dtype: torch.dtype | None = None) -> Tensor:
        return torch.tensor(values, dtype=dtype)

    def evaluate(self, packed: list[str]) -> PolicyAndV:
        self.seen += packed
        log_pi_BA = torch.tensor([LOG_PI[text] for text in packed]).log()
        return PolicyAndV(log_pi_BA, torch.tensor([VALUES[text] for text in packed]))


def map_no_grad(compute: Callable[[Sequence[Any]], Tensor], rows: Sequence[Any], size: int) -> Tensor:
    return torch.cat([compute(rows[i : i + size]) for i in range(0, len(rows), size)], dim=1).double()


def window(*, terminated: bool = False) -> Window:
    """Three steps from s0 to s3, with actions 0, 1, 0 and the reward at the end."""
    observations = tuple(Observation(f"s{t}", ACTIONS) for t in range(4))
    return Window("goal", observations, (0, 1, 0), (0.0, 0.0, 1.0), terminated, "real")


def make(config: PpoConfig = CONFIG, seed: int = 0) -> tuple[Ppo, Known]:
    model = Known()
    return Ppo(cast(ActorValue, model), config, 1, np.random.default_rng(seed), PhaseClock()), model


def _text(query: Query) -> str:
    """The observation in a prompt."""
    return query.prompt.splitlines()[1]


def by_state(samples: Sequence[Sample]) -> dict[str, Sample]:
    return {_text(sample.query): sample for sample in samples}


def epoch(ppo: Ppo, *windows: Window) -> dict[str, Sample]:
    return by_state([sample for rows in ppo.minibatches([windows], map_no_grad) for sample in rows])


def scaled(*advantages: float) -> list[float]:
    """With mean 0 and standard deviation 1."""
    raw = np.array(advantages)
    return ((raw - raw.mean()) / raw.std()).tolist()


def test_samples_of_a_terminated_episode_have_the_advantages_worked_out_by_hand() -> None:
    ppo, model = make()
    found = epoch(ppo, window(terminated=True))
    # As in test_ppo_math.py: 0.024, 0.06, 0.4; the return is the advantage and the value.
    assert [found[s].advantage for s in ("s0", "s1", "s2")] == pytest.approx(scaled(0.024, 0.06, 0.4))
    assert [found[s].return_ for s in ("s0", "s1", "s2")] == pytest.approx([0.224, 0.46, 1.0])
    assert [found[s].action for s in ("s0", "s1", "s2")] == [0, 1, 0]
    assert [math.exp(found[s].old_log_prob) for s in ("s0", "s1", "s2")] == pytest.approx([0.5, 0.75, 0.9])
    assert "s3" not in model.seen  # what follows a termination has no value and is not asked for one


def test_own_rewards_are_scaled() -> None:
    ppo, _ = make(replace_config(reward_scale=0.5))
    tripled = replace(window(terminated=True), rewards=tuple(2 * reward for reward in window().rewards))
    found = epoch(ppo, tripled)
    assert [found[s].return_ for s in ("s0", "s1", "s2")] == pytest.approx([0.224, 0.46, 1.0])


def test_a_window_that_does_not_terminate_bootstraps() -> None:
    ppo, _ = make()
    found = epoch(ppo, window())
    assert [found[s].advantage for s in ("s0", "s1", "s2")] == pytest.approx(scaled(0.088, 0.22, 0.8))


def test_every_epoch_takes_each_sample_once_in_another_order() -> None:
    ppo, _ = make(replace_config(epochs=3, batch_size=4))
    windows = [replace(window(terminated=True), goal=f"goal {i}") for i in range(4)]
    rows = list(ppo.minibatches([windows], map_no_grad))
    assert [len(part) for part in rows] == [4] * 9
    orders = [[s.query for part in rows[i : i + 3] for s in part] for i in (0, 3, 6)]
    assert all(Counter(order) == Counter(orders[0]) and len(set(order)) == 12 for order in orders)
    assert orders[0] != orders[1] != orders[2]


def replace_config(**changes: Any) -> PpoConfig:
    return CONFIG.model_copy(update=changes)


def test_advantages_are_normalised_over_the_whole_interval() -> None:
    ppo, _ = make()
    windows = [window(terminated=True), window()]
    samples = [s for rows in list(ppo.minibatches([windows], map_no_grad))[:3] for s in rows]
    assert sorted(s.advantage for s in samples) == pytest.approx(sorted(scaled(0.024, 0.06, 0.4, 0.088, 0.22, 0.8)))
    # Returns are what the value is to learn, so they are as they were.
    assert sorted(s.return_ for s in samples)[-1] == pytest.approx(1.4)


def test_the_generator_fixes_the_order_and_goes_with_the_state() -> None:
    def order(ppo: Ppo) -> list[str]:
        return [_text(s.query) for rows in ppo.minibatches([[window(terminated=True)]], map_no_grad) for s in rows]

    (first, _), (second, _), (other, _) = make(), make(), make(seed=1)
    assert order(first) == order(second)
    state = first.state()
    following = [order(first) for _ in range(4)]
    other.load_state(state)
    assert [order(other) for _ in range(4)] == following


def test_losses_on_numbers_worked_out_by_hand() -> None:
    ppo, _ = make(replace_config(entropy_coef=0.1))
    batch = PpoBatch(
        packed=["s0", "s1"],
        action_B=torch.tensor([0, 1]),
        old_log_prob_B=torch.tensor([0.4, 0.5]).log(),
        advantage_B=torch.tensor([1.0, -1.0]),
        return_B=torch.tensor([1.2, 0.4]),
    )
    loss, metrics = ppo.losses(batch, update=0)
    # Ratios 0.5 / 0.4 = 1.25, clipped to 1.2, and 0.75 / 0.5 = 1.5, kept since the advantage is negative.
    assert metrics["policy_loss"] == pytest.approx(-(1.2 - 1.5) / 2)
    assert metrics["value_loss"] == pytest.approx(((0.2 - 1.2) ** 2 + 0.0) / 2)
    entropy = (math.log(2) - 0.25 * math.log(0.25) - 0.75 * math.log(0.75)) / 2
    assert metrics["entropy"] == pytest.approx(entropy)
    assert loss.item() == pytest.approx(0.15 + 0.5 * 0.5 - 0.1 * entropy)
    assert metrics["clipped_share"] == 1.0
    assert metrics["kl"] == pytest.approx((0.25 - math.log(1.25) + 0.5 - math.log(1.5)) / 2)
