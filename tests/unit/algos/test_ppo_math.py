"""Advantages, the clipped loss and the value loss, on numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sacglam.algos.equations import clipped_loss, lambda_returns, value_loss

REWARD_T = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
VALUE_T = torch.tensor([0.2, 0.4, 0.6], dtype=torch.float64)


def advantages(reward_T: Tensor, value_T: Tensor, bootstrap: float, gamma: float, gae_lambda: float) -> Tensor:
    """Generalised advantage estimates, as the lambda-return less the value."""
    next_value_T = torch.cat([value_T[1:], torch.tensor([bootstrap], dtype=torch.float64)])
    return lambda_returns(reward_T, next_value_T, gamma, gae_lambda) - value_T


def test_advantages_of_an_episode_that_terminates() -> None:
    # gamma 0.5, lambda 0.8. delta: 0 + 0.5 * 0.4 - 0.2 = 0; 0 + 0.5 * 0.6 - 0.4 = -0.1; 1 + 0 - 0.6 = 0.4.
    # A_2 = 0.4; A_1 = -0.1 + 0.4 * 0.4 = 0.06; A_0 = 0 + 0.4 * 0.06 = 0.024.
    found = advantages(REWARD_T, VALUE_T, 0.0, 0.5, 0.8)
    assert found.tolist() == pytest.approx([0.024, 0.06, 0.4])


def test_truncation_bootstraps_from_the_state_that_follows() -> None:
    # As above, but the last delta is 1 + 0.5 * 0.8 - 0.6 = 0.8: A_1 = -0.1 + 0.32 = 0.22; A_0 = 0.088.
    assert advantages(REWARD_T, VALUE_T, 0.8, 0.5, 0.8).tolist() == pytest.approx([0.088, 0.22, 0.8])


def test_lambda_zero_is_the_one_step_error() -> None:
    assert advantages(REWARD_T, VALUE_T, 0.8, 0.5, 0.0).tolist() == pytest.approx([0.0, -0.1, 0.8])


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=1, max_size=8), st.floats(-1, 1))
def test_lambda_one_is_the_discounted_return_less_the_value(steps: list[tuple[float, float]], bootstrap: float) -> None:
    rewards, values = (torch.tensor(column, dtype=torch.float64) for column in zip(*steps, strict=True))
    found = advantages(rewards, values, bootstrap, 0.9, 1.0)
    for t in range(len(steps)):
        returns = sum(0.9 ** (i - t) * float(rewards[i]) for i in range(t, len(steps)))
        returns += 0.9 ** (len(steps) - t) * bootstrap
        assert float(found[t]) == pytest.approx(returns - float(values[t]), abs=1e-9)


def test_clipped_loss_and_where_its_gradient_ends() -> None:
    # min(r A, clip(r) A), eps 0.2: 1.5, 1 -> 1.2 (clipped); 0.5, 1 -> 0.5; 1.5, -1 -> -1.5; 0.5, -1 -> -0.8 (clipped).
    ratio_B = torch.tensor([1.5, 0.5, 1.5, 0.5], requires_grad=True)
    loss = clipped_loss(ratio_B, torch.tensor([1.0, 1.0, -1.0, -1.0]), 0.2)
    loss.backward()
    assert loss.item() == pytest.approx(-(1.2 + 0.5 - 1.5 - 0.8) / 4)
    assert ratio_B.grad is not None
    assert ratio_B.grad.tolist() == pytest.approx([0.0, -0.25, 0.25, 0.0])


def test_value_loss_is_the_mean_squared_error() -> None:
    # (1 - 0)^2 and (2 - 5)^2.
    assert value_loss(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 5.0])).item() == pytest.approx(5.0)
