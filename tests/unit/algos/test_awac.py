from __future__ import annotations

import math

import pytest
import torch

from sacglam.algos.awac import awac_loss


def test_the_loss_by_hand() -> None:
    # Two states with two actions each, pi = (1/4, 3/4) and (1/2, 1/2), and two Q functions of which the least counts.
    pi_BA = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    q_CBA = torch.tensor([[[1.0, 0.2], [0.0, 0.0]], [[0.8, 0.4], [0.0, 9.0]]])
    action_B = torch.tensor([0, 1])
    log_pi_BA = pi_BA.log().requires_grad_(True)
    # V = 0.25 * 0.8 + 0.75 * 0.2 = 0.35 and 0; A = 0.8 - 0.35 = 0.45 and 0 - 0 = 0; the temperature is 0.9.
    loss = awac_loss(log_pi_BA, q_CBA, action_B, 0.9)
    assert loss.item() == pytest.approx(-(math.exp(0.5) * math.log(0.25) + math.log(0.5)) / 2)
    loss.backward()
    assert log_pi_BA.grad is not None
    assert log_pi_BA.grad.tolist() == [[pytest.approx(-math.exp(0.5) / 2), 0.0], [0.0, -0.5]]


def test_a_weight_has_a_limit() -> None:
    log_pi_BA, q_CBA = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[[1.0, 0.0]]])
    loss = awac_loss(log_pi_BA, q_CBA, torch.tensor([0]), 0.001)
    assert loss.item() == pytest.approx(20 * math.log(2))
