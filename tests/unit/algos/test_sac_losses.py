"""The joint loss of SAC-GLAM on a model that is two tables, worked out by hand."""

from __future__ import annotations

import math
from typing import cast

import pytest
import torch
from torch import Tensor

from sacglam.algos.sac import SacBatch, sac_losses, targets
from sacglam.models.actor_critic import ActorCritic, PolicyValues

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

    def evaluate(self, packed: list[int]) -> PolicyValues:
        return self._values(packed, self.q)

    def bootstrap(self, packed: list[int]) -> PolicyValues:
        self.bootstrapped.append(packed)
        return self._values(packed, self.target_q)

    def _values(self, packed: list[int], q: Tensor) -> PolicyValues:
        log_pi_BA = torch.log_softmax(self.logits[packed], dim=-1)
        return PolicyValues(log_pi_BA, q[:, packed])


def _batch(bootstraps: list[bool], following: list[int]) -> SacBatch:
    return SacBatch(
        packed=[0, 1, 0],
        action_B=torch.tensor([1, 0, 0]),
        reward_B=torch.tensor([0.0, 1.0, 0.5]),
        discount_B=torch.tensor([0.5, 0.25, 0.25]),
        bootstraps_B=torch.tensor(bootstraps),
        next_packed=following,
    )


def _losses(model: Tables, *, train_actor: bool = True, critic_weight: float = 1.0) -> tuple[Tensor, dict[str, Tensor]]:
    batch, played = _batch([True, False, True], [1, 0]), cast(ActorCritic, model)
    return sac_losses(played, batch, targets(played, batch, ALPHA), ALPHA, train_actor, critic_weight)


# V(1) with the target's min Q = (0, 4): 3/4 * 4 + 0.2 H(1) = 3 + 0.2 H(1), H(1) = 1/4 ln 4 + 3/4 ln(4/3).
# V(0) with the target's min Q = (3, 1): 1/2 * 3 + 1/2 * 1 + 0.2 ln 2 = 2 + 0.2 ln 2.
H1 = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)
# Row 0 bootstraps at state 1, row 1 terminated, row 2 bootstraps at state 0.
Y = (0.5 * (3 + 0.2 * H1), 1.0, 0.5 + 0.25 * (2 + 0.2 * LN2))
# Q taken: critic 0 (3, 4, 1), critic 1 (2, 4, 2).
CRITIC = sum((a - y) ** 2 for a, y in zip((3, 4, 1), Y, strict=True)) / 3
CRITIC += sum((a - y) ** 2 for a, y in zip((2, 4, 2), Y, strict=True)) / 3
# Soft value of the actor loss: state 0, min Q = (1, 2): 1.5 + 0.2 ln 2; state 1, min Q = (4, 0): 1 + 0.2 H(1).
ACTOR = -(2 * (1.5 + 0.2 * LN2) + 1 + 0.2 * H1) / 3


def test_joint_loss_by_hand() -> None:
    model = Tables()
    loss, metrics = _losses(model)
    assert loss.item() == pytest.approx(CRITIC + ACTOR, rel=1e-5)
    # Mean of the six Q values taken: (3 + 4 + 1 + 2 + 4 + 2) / 6 = 16 / 6.
    assert metrics == pytest.approx(
        {
            "critic_loss": CRITIC,
            "actor_loss": ACTOR,
            "entropy": (2 * LN2 + H1) / 3,
            "q": 16 / 6,
            "target": sum(Y) / 3,
        },
        rel=1e-5,
    )
    assert model.bootstrapped == [[1, 0]], "one bootstrap forward, of the rows that go on"


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
