"""The joint loss of SAC-GLAM on a model that is two tables, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from sacglam.algos.sac import Sac, SacBatch, SacConfig
from sacglam.algos.sac_settings import AlphaConfig
from sacglam.clock import PhaseClock
from sacglam.models.actor_critic import ActorCritic, PolicyAndQ
from sacglam.replay.graph import UNTRIED

LN2 = math.log(2)
ALPHA = 0.2


class Tables:
    """Stands for an ActorCritic: a packed batch is a list of row numbers into tables of logits and Q values."""

    def __init__(self) -> None:
        # State 0: pi = (1/2, 1/2), Q = (1, 3) and (2, 2). State 1: pi = (1/4, 3/4), Q = (4, 0) and (4, 8).
        self.logits = torch.tensor([[0.0, 0.0], [0.0, math.log(3)]], requires_grad=True)
        self.q = torch.tensor([[[1.0, 3.0], [4.0, 0.0]], [[2.0, 2.0], [4.0, 8.0]]], requires_grad=True)
        self.target_q = torch.tensor([[[5.0, 1.0], [0.0, 4.0]], [[3.0, 9.0], [8.0, 4.0]]], requires_grad=True)
        self.bootstrapped: list[list[int]] = []

    def evaluate(self, packed: list[int], taken_B: Tensor | None = None) -> PolicyAndQ:
        return self._values(packed, self.q)

    def evaluate_with_target(self, packed: list[int], taken_B: Tensor) -> tuple[PolicyAndQ, PolicyAndQ]:
        return self._values(packed, self.q), self._values(packed, self.target_q.detach())

    def bootstrap(self, packed: list[int]) -> PolicyAndQ:
        self.bootstrapped.append(packed)
        return self._values(packed, self.target_q)

    def _values(self, packed: list[int], q: Tensor) -> PolicyAndQ:
        log_pi_BA = torch.log_softmax(self.logits[packed], dim=-1)
        return PolicyAndQ(log_pi_BA, q[:, packed])


# The first steps of three windows: one step, then state 1; one step, then termination; two steps, then state 0.
FIRST_STEPS = SacBatch(
    packed=[0, 1, 0],
    action_B=torch.tensor([1, 0, 0]),
    place_B=torch.tensor([1, 3, 4]),
    reward_WT=torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 1.0]]),
    return_after_W=torch.tensor([0.0, 0.0, 4.0]),
    bootstraps_W=torch.tensor([True, False, True]),
    last_packed=[1, 0],
)
# The same and the second step of the last window, which was taken in state 1.
ALL_STEPS = replace(
    FIRST_STEPS, packed=[0, 1, 0, 1], action_B=torch.tensor([1, 0, 0, 1]), place_B=torch.tensor([1, 3, 4, 5])
)


class Soft(SacConfig):
    """With the entropy in the target of windows, too: its values need not be within [0, 1], as in these tables."""

    soft_target: ClassVar[bool] = True


def _losses(
    model: Tables,
    batch: SacBatch = FIRST_STEPS,
    *,
    kind: type[SacConfig] = Soft,
    train_actor: bool = True,
    **settings: float | bool,
) -> tuple[Tensor, dict[str, float]]:
    warm_up = 0 if train_actor else 1
    config = kind(gamma=0.5, alpha=AlphaConfig(init=ALPHA), warmup_updates=warm_up, **settings)
    sac = Sac(cast(ActorCritic, model), config, 1, np.random.default_rng(0), PhaseClock())
    loss, metrics = sac.losses(batch, 0)
    return loss, {name: value.item() for name, value in metrics.items()}


# V(1) with the target's min Q = (0, 4): 3/4 * 4 + 0.2 H(1) = 3 + 0.2 H(1), H(1) = 1/4 ln 4 + 3/4 ln(4/3).
# V(0) with the target's min Q = (3, 1): 1/2 * 3 + 1/2 * 1 + 0.2 ln 2 = 2 + 0.2 ln 2.
H1 = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)
V1, V0 = 3 + 0.2 * H1, 2 + 0.2 * LN2
# Row 0 bootstraps at state 1, row 1 terminated, row 2 bootstraps at state 0.
Y = (0.5 * V1, 1.0, 0.5 + 0.25 * V0)
# Q taken: critic 0 (3, 4, 1), critic 1 (2, 4, 2).
CRITIC = sum((a - y) ** 2 for a, y in zip((3, 4, 1), Y, strict=True)) / 3
CRITIC += sum((a - y) ** 2 for a, y in zip((2, 4, 2), Y, strict=True)) / 3
# Soft value of the actor loss: state 0, min Q = (1, 2): 1.5 + 0.2 ln 2; state 1, min Q = (4, 0): 1 + 0.2 H(1).
ACTOR = -(2 * (1.5 + 0.2 * LN2) + 1 + 0.2 * H1) / 3


def test_joint_loss_by_hand() -> None:
    model = Tables()
    loss, metrics = _losses(model, replace(FIRST_STEPS, hindsight_share=0.25))
    assert loss.item() == pytest.approx(CRITIC + ACTOR, rel=1e-5)
    # Mean of the six Q values taken: (3 + 4 + 1 + 2 + 4 + 2) / 6 = 16 / 6.
    assert metrics == pytest.approx(
        {
            "critic_loss": CRITIC,
            "actor_loss": ACTOR,
            "entropy": (2 * LN2 + H1) / 3,
            "random_entropy": LN2,
            "q": 16 / 6,
            "target": sum(Y) / 3,
            "batch_hindsight_share": 0.25,
        },
        rel=1e-5,
    )
    assert model.bootstrapped == [[1, 0]], "one bootstrap forward, of the windows that do not terminate"


def test_the_critics_loss_is_weighted_and_reported_as_it_is() -> None:
    loss, metrics = _losses(Tables(), critic_weight=3.0)
    assert loss.item() == pytest.approx(3 * CRITIC + ACTOR, rel=1e-5)
    assert metrics["critic_loss"] == pytest.approx(CRITIC, rel=1e-5)


def test_gradients_reach_policy_and_critics_but_never_the_target() -> None:
    model = Tables()
    _losses(model)[0].backward()
    assert model.target_q.grad is None
    assert model.q.grad is not None
    assert model.logits.grad is not None
    # The critics' gradient is that of their squared errors alone, 2 (Q - y) / 3: nothing comes from the actor's loss.
    expected = torch.tensor(
        [
            [[2 * (1 - Y[2]) / 3, 2 * (3 - Y[0]) / 3], [2 * (4 - Y[1]) / 3, 0.0]],
            [[2 * (2 - Y[2]) / 3, 2 * (2 - Y[0]) / 3], [2 * (4 - Y[1]) / 3, 0.0]],
        ]
    )
    torch.testing.assert_close(model.q.grad, expected)
    # State 0 (two rows of three): f = alpha log pi - min Q = (-1, -2) - 0.2 ln 2, less its mean under pi: (1/2, -1/2).
    torch.testing.assert_close(model.logits.grad[0], torch.tensor([0.25, -0.25]) * 2 / 3)


def test_warm_up_trains_the_critic_alone() -> None:
    model = Tables()
    loss, metrics = _losses(model, train_actor=False)
    assert loss.item() == pytest.approx(CRITIC, rel=1e-5)
    assert "actor_loss" not in metrics
    loss.backward()
    assert model.logits.grad is None


@pytest.mark.parametrize("td_lambda", [0.0, 0.8, 1.0])
def test_every_step_of_a_window_learns_towards_its_lambda_return(td_lambda: float) -> None:
    # The last step of the third window: 1 + V(0) / 2. The step before it mixes that with V(1), where it led.
    last = 1 + 0.5 * V0
    y = (0.5 * V1, 1.0, 0.5 * ((1 - td_lambda) * V1 + td_lambda * last), last)
    # Q taken by the fourth step: critic 0 has 0, critic 1 has 8.
    critic = sum((q - target) ** 2 for q, target in zip((3, 4, 1, 0), y, strict=True)) / 4
    critic += sum((q - target) ** 2 for q, target in zip((2, 4, 2, 8), y, strict=True)) / 4
    actor = -(2 * (1.5 + 0.2 * LN2) + 2 * (1 + 0.2 * H1)) / 4
    model = Tables()
    loss, metrics = _losses(model, ALL_STEPS, td_lambda=td_lambda)
    assert metrics["target"] == pytest.approx(sum(y) / 4, rel=1e-5)
    assert loss.item() == pytest.approx(critic + actor, rel=1e-5)
    assert model.bootstrapped == [[1, 0]], "values inside a window come from the pass that learns"
    loss.backward()
    assert model.target_q.grad is None


def test_a_hard_target_has_no_entropy_and_keeps_to_what_a_return_can_be() -> None:
    # Without entropy V(1) = 3 and V(0) = 2, both beyond 1: rows 0.5, 1 and 0.5 + 0.25.
    _, metrics = _losses(Tables(), kind=SacConfig, td_lambda=1.0)
    assert metrics["target"] == pytest.approx((0.5 + 1 + 0.75) / 3)
    model = Tables()
    model.target_q = model.target_q * -0.1  # min Q = (-0.8, -0.4) and (-0.5, -0.9): V is negative
    assert _losses(model, kind=SacConfig, td_lambda=1.0)[1]["target"] == pytest.approx((0 + 1 + 0.5) / 3)
    model.target_q = model.target_q * -1.0  # min Q = (0, 0.4): V(1) = 0.3; min Q = (0.3, 0.1): V(0) = 0.2
    assert _losses(model, kind=SacConfig, td_lambda=1.0)[1]["target"] == pytest.approx((0.15 + 1 + 0.55) / 3)


def test_values_of_own_rewards_have_no_bounds() -> None:
    # V(1) = 3 and V(0) = 2, as they are: rows 0.5 * 3, 1 and 0.5 + 0.25 * 2.
    _, metrics = _losses(Tables(), kind=SacConfig, td_lambda=1.0, reward_scale=1.0)
    assert metrics["target"] == pytest.approx((1.5 + 1 + 1) / 3)


def test_imitation_follows_what_returned_more_than_its_state_is_worth() -> None:
    # Returns: 0, 1, and of the third window 0 + 1/2 (1 + 1/2 * 4) = 1.5 and 1 + 1/2 * 4 = 3.
    # V under min Q: state 0 has 1/2 * 1 + 1/2 * 2 = 1.5, state 1 has 1/4 * 4 + 3/4 * 0 = 1.
    # So the advantages are 0 (cut off at -1.5), 0, 0 and 2, for action 1 in state 1, pi = 3/4. There the values 4 and 0
    # are 1/4 * 3 + 3/4 * 1 = 3/2 from V on average, and 2 / (3/2) is cut off at 1.
    model = Tables()
    loss, metrics = _losses(model, ALL_STEPS, td_lambda=0.8, self_imitation=3.0)
    assert metrics["imitation_loss"] == pytest.approx(-math.log(0.75) / 4, rel=1e-5)
    without, _ = _losses(Tables(), ALL_STEPS, td_lambda=0.8)
    assert loss.item() == pytest.approx(without.item() + 3 * metrics["imitation_loss"], rel=1e-5)
    assert "imitation_loss" not in _losses(Tables(), ALL_STEPS, td_lambda=0.8, self_imitation=3.0, train_actor=False)[1]


def test_what_the_replay_graph_knows_bounds_q_from_below_and_is_imitated() -> None:
    # Known of state 0: action 1 is worth 5, and action 0 was not tried. Of state 1: 1/2 and 3. Of state 0 in the third
    # window: a path to nothing.
    known_BA = torch.tensor([[UNTRIED, 5.0], [0.5, 3.0], [0.0, 0.0]])
    bound_B = torch.tensor([5.0, 0.5, UNTRIED])  # of the actions taken; no bound of the third, which had two outcomes
    loss, metrics = _losses(Tables(), replace(FIRST_STEPS, known_BA=known_BA, bound_B=bound_B), self_imitation=3.0)
    # Taken were actions 1, 0 and 0: the first target was V(1) / 2 = 1.6 and is 5; the second, 1, is more than 1/2; the
    # third stays 1/2 * 1 + 1/4 * V(0).
    y = (5.0, 1.0, 0.5 + 0.25 * V0)
    critic = sum((q - target) ** 2 for q, target in zip((3, 4, 1), y, strict=True)) / 3
    critic += sum((q - target) ** 2 for q, target in zip((2, 4, 2), y, strict=True)) / 3
    # The actor sees min Q = (1, 2) as (1, 5), (4, 0) as (4, 3), and the third as it is.
    actor = -((3 + 0.2 * LN2) + (3.25 + 0.2 * H1) + (1.5 + 0.2 * LN2)) / 3
    # Imitated are action 1 in state 0, pi = 1/2, whose 5 exceeds V = (1 + 5) / 2 by 2, with min Q = 1 for what was not
    # tried; and action 1 in state 1, pi = 3/4, whose 3 exceeds V = 1/8 + 9/4 by 5/8. The values are 2 and 15/16 from V
    # on average, so the weights are 1 and 2/3. Nothing in the third.
    imitation = (LN2 + 2 / 3 * math.log(4 / 3)) / 3
    assert metrics["imitation_loss"] == pytest.approx(imitation, rel=1e-5)
    assert loss.item() == pytest.approx(critic + actor + 3 * imitation, rel=1e-5)


def test_what_demonstrations_did_not_take_counts_as_a_step_worse_than_the_best_known() -> None:
    # In state 0 action 0 is known to be worth 1, and action 1, with min Q = 2, was not taken. Nothing else is known.
    known_BA = torch.tensor([[1.0, UNTRIED], [UNTRIED, UNTRIED], [UNTRIED, UNTRIED]])

    def metrics(imitated: bool) -> dict[str, float]:
        batch = replace(FIRST_STEPS, known_BA=known_BA, shown_BA=known_BA if imitated else None)
        return _losses(Tables(), batch, self_imitation=3.0)[1]

    trusted, capped = metrics(imitated=False), metrics(imitated=True)
    # Trusted, V = (1 + 2) / 2 exceeds 1, so nothing is imitated. Otherwise V = (1 + 1/2) / 2, and the weight is 1.
    assert trusted["imitation_loss"] == 0.0
    assert capped["imitation_loss"] == pytest.approx(LN2 / 3, rel=1e-5)
    assert capped["actor_loss"] - trusted["actor_loss"] == pytest.approx((1.5 - 0.75) / 3, rel=1e-4)


def test_without_a_graph_a_demonstration_shows_the_return_of_what_it_did() -> None:
    # In state 0 action 1 was taken and returned 1/2, so action 0, with min Q = 1, counts as at most 1/4.
    shown_BA = torch.tensor([[UNTRIED, 0.5], [UNTRIED, UNTRIED], [UNTRIED, UNTRIED]])
    _, trusted = _losses(Tables())
    _, capped = _losses(Tables(), replace(FIRST_STEPS, shown_BA=shown_BA))
    assert capped["actor_loss"] - trusted["actor_loss"] == pytest.approx((1 - 0.25) / 2 / 3, rel=1e-4)
    # If it returned 5, that is what its action counts as: more than min Q = 2.
    _, better = _losses(Tables(), replace(FIRST_STEPS, shown_BA=10 * shown_BA))
    assert better["actor_loss"] - trusted["actor_loss"] == pytest.approx(-(5 - 2) / 2 / 3, rel=1e-4)
