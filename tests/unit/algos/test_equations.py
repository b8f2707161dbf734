"""The equations of SAC-GLAM against numbers worked out by hand, and their indifference to padding."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sacglam.algos.equations import (
    actor_loss,
    alpha_loss,
    at_least,
    best_known,
    capped_untried,
    critic_loss,
    entropy,
    expectation,
    finite,
    imitation_loss,
    lambda_returns,
    relative_advantage,
    soft_value,
    taken,
    uniform_entropy,
)
from sacglam.replay.graph import UNTRIED

LN2 = math.log(2)
ALPHA = 0.1

# Row 0 has pi = (1/2, 1/4, 1/4). Row 1 has two actions, pi = (1/2, 1/2), and a padded third.
LOG_PI_BA = torch.tensor([[-LN2, -2 * LN2, -2 * LN2], [-LN2, -LN2, -torch.inf]], dtype=torch.float64)
# min over critics, row 0: (1, 0, 4); row 1: (2, 5), and -7 on padding.
Q_CBA = torch.tensor([[[1.0, 2.0, 4.0], [2.0, 6.0, -7.0]], [[3.0, 0.0, 5.0], [3.0, 5.0, 9.0]]], dtype=torch.float64)


def test_expectation_by_hand() -> None:
    # Row 0: 1/2 * 8 + 1/4 * 4 + 1/4 * (-4) = 4. Row 1: 1/2 * 2 + 1/2 * 6 = 4, the 100 on padding apart.
    value_BA = torch.tensor([[8.0, 4.0, -4.0], [2.0, 6.0, 100.0]], dtype=torch.float64)
    torch.testing.assert_close(expectation(LOG_PI_BA, value_BA), torch.tensor([4.0, 4.0], dtype=torch.float64))


def test_finite_replaces_minus_infinity_alone() -> None:
    assert finite(torch.tensor([-1.0, -torch.inf, 0.0])).tolist() == [-1.0, 0.0, 0.0]


def test_entropy_by_hand() -> None:
    # Row 0: 1/2 ln 2 + 1/4 * 2 ln 2 + 1/4 * 2 ln 2 = 3/2 ln 2. Row 1: ln 2.
    torch.testing.assert_close(entropy(LOG_PI_BA), torch.tensor([1.5 * LN2, LN2], dtype=torch.float64))


def test_entropy_of_a_certain_policy_is_zero() -> None:
    assert entropy(torch.tensor([[0.0], [0.0]])).tolist() == [0.0, 0.0]
    assert entropy(torch.tensor([[0.0, -torch.inf]])).tolist() == [0.0]


def test_soft_value_by_hand() -> None:
    # V = sum pi min Q + alpha H. Row 0: 1/2 * 1 + 1/4 * 0 + 1/4 * 4 = 1.5, and 0.1 * 1.5 ln 2.
    # Row 1: 1/2 * 2 + 1/2 * 5 = 3.5, and 0.1 ln 2.
    # (The minimum is taken for each action: the smaller of the two critics' own expectations in row 0 would be 2.)
    expected = torch.tensor([1.5 + 0.15 * LN2, 3.5 + 0.1 * LN2], dtype=torch.float64)
    torch.testing.assert_close(soft_value(LOG_PI_BA, Q_CBA, ALPHA), expected)


def test_soft_value_of_one_critic_and_no_entropy_is_the_mean_q() -> None:
    # 1/2 * 1 + 1/4 * 2 + 1/4 * 4 = 2; 1/2 * 2 + 1/2 * 6 = 4.
    torch.testing.assert_close(soft_value(LOG_PI_BA, Q_CBA[:1], 0.0), torch.tensor([2.0, 4.0], dtype=torch.float64))


def test_lambda_returns_by_hand() -> None:
    # gamma 0.5, lambda 0.8; rewards 0, 0, 1. Row 0 continues in a state of value 4, row 1 terminates.
    # Row 0: G_2 = 1 + 0.5 * 4 = 3; G_1 = 0.5 (0.2 * 6 + 0.8 * 3) = 1.8; G_0 = 0.5 (0.2 * 2 + 0.8 * 1.8) = 0.92.
    # Row 1: G_2 = 1; G_1 = 0.5 (0.2 * 6 + 0.8 * 1) = 1; G_0 = 0.5 (0.2 * 2 + 0.8 * 1) = 0.6.
    reward_WT = torch.tensor([[0.0, 0.0, 1.0]] * 2, dtype=torch.float64)
    next_value_WT = torch.tensor([[2.0, 6.0, 4.0], [2.0, 6.0, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[0.92, 1.8, 3.0], [0.6, 1.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(lambda_returns(reward_WT, next_value_WT, 0.5, 0.8), expected)


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_with_lambda_one_values_inside_do_not_count(value: float) -> None:
    # gamma = 0.9, rewards 0, 0, 1, then a state of value 2: 0.9^2 * 1 + 0.9^3 * 2 = 0.81 + 1.458 = 2.268.
    reward_WT, next_value_WT = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[value, value, 2.0]])
    found = lambda_returns(reward_WT, next_value_WT, 0.9, 1.0)
    assert found[0].tolist() == pytest.approx([2.268, 2.52, 2.8])


def test_imitation_loss_by_hand() -> None:
    # -(ln(1/2) * 2 + ln(1/4) * 0) / 2 = ln 2: what returned less than its state's value does not count.
    assert imitation_loss(torch.tensor([-LN2, -2 * LN2]), torch.tensor([2.0, -3.0])).item() == pytest.approx(LN2)


def test_relative_advantage_by_hand() -> None:
    # pi = (3/4, 1/4) and Q = (0, 4): V = 1, and the mean distance from it is 3/2. So R = 1.75 is half of it above V,
    # as it is with a hundredth of the rewards and 7 added. Then R = V, and a return far beyond all of Q.
    log_pi_BA = torch.tensor([[0.75, 0.25]] * 4).log()
    q_CBA = torch.tensor([[[0.0, 4.0], [7.0, 7.04], [0.0, 4.0], [0.0, 4.0]]])
    value_B, return_B = torch.tensor([1.0, 7.01, 1.0, 1.0]), torch.tensor([1.75, 7.0175, 1.0, 99.0])
    found_B = relative_advantage(return_B, value_B, log_pi_BA, q_CBA)
    assert found_B.tolist() == pytest.approx([0.5, 0.5, 0.0, 1.0], abs=1e-3)


def test_relative_advantage_of_equal_actions_is_zero() -> None:
    log_pi_BA, q_CBA = torch.tensor([[0.5, 0.5, 0.0]]).log(), torch.tensor([[[3.0, 3.0, -torch.inf]]])
    assert relative_advantage(torch.tensor([3.0]), torch.tensor([3.0]), log_pi_BA, q_CBA).tolist() == [0.0]


def test_a_known_path_bounds_q_from_below() -> None:
    known_BA = torch.tensor([[2.0, 0.0, UNTRIED], [3.0, 3.0, UNTRIED]])  # 0: no path
    found = at_least(Q_CBA, known_BA).tolist()
    assert found == [[[2.0, 2.0, 4.0], [3.0, 6.0, -7.0]], [[3.0, 0.0, 5.0], [3.0, 5.0, 9.0]]]


def test_unknown_actions_of_imitated_rows_are_worth_a_step_less_than_the_best_known() -> None:
    known_BA = torch.tensor([[0.5, UNTRIED, 0.0], [0.5, UNTRIED, UNTRIED], [0.0, UNTRIED, 0.0]])
    q_CBA = torch.tensor([[[0.9, 0.9, 0.9], [0.3, 0.9, 0.2], [0.9, 0.9, 0.9]]])
    found = capped_untried(q_CBA, known_BA, gamma=0.8)
    torch.testing.assert_close(found, torch.tensor([[[0.9, 0.4, 0.9], [0.3, 0.4, 0.2], [0.9, 0.9, 0.9]]]))
    assert torch.equal(capped_untried(q_CBA, torch.full((3, 3), UNTRIED), gamma=0.8), q_CBA)
    # With own rewards, a return of -10 leaves at most -12.
    own = capped_untried(torch.tensor([[[0.0, 0.0]]]), torch.tensor([[-10.0, UNTRIED]]), 0.8, -torch.inf)
    assert own.tolist() == [[[0.0, -12.0]]]


def test_the_best_known_actions_count_alike() -> None:
    # Row 0: action 1 alone, ln(1/4) = -2 ln 2. Row 1: both actions, -ln 2 each.
    known_BA = torch.tensor([[0.2, 0.5, 0.0], [0.3, 0.3, UNTRIED]])
    value_B, log_prob_B = best_known(LOG_PI_BA, known_BA)
    assert value_B.tolist() == pytest.approx([0.5, 0.3])
    assert log_prob_B.tolist() == pytest.approx([-2 * LN2, -LN2])
    # Where no path is known, nothing is imitated.
    value_B, log_prob_B = best_known(LOG_PI_BA, torch.tensor([[0.0, UNTRIED, UNTRIED], [UNTRIED, UNTRIED, UNTRIED]]))
    assert value_B.tolist() == [0.0, UNTRIED]
    assert log_prob_B.tolist() == [0.0, 0.0]


def test_the_random_policy_s_entropy_counts_no_padding() -> None:
    log_pi_BA = torch.tensor([[-1.0, -2.0, -3.0], [0.0, -torch.inf, -torch.inf]])
    assert uniform_entropy(log_pi_BA).tolist() == pytest.approx([math.log(3), 0.0])


def test_taken_picks_each_row_s_action_from_every_critic() -> None:
    assert taken(Q_CBA, torch.tensor([2, 0])).tolist() == [[4.0, 2.0], [5.0, 3.0]]


def test_critic_loss_by_hand() -> None:
    # Taken: critic 0 (4, 2), critic 1 (5, 3); targets (3, 5).
    # Critic 0: ((4 - 3)^2 + (2 - 5)^2) / 2 = 5. Critic 1: ((5 - 3)^2 + (3 - 5)^2) / 2 = 4. Together 9.
    q_CBA = Q_CBA.clone().requires_grad_()
    loss = critic_loss(q_CBA, torch.tensor([2, 0]), torch.tensor([3.0, 5.0], dtype=torch.float64))
    assert loss.item() == pytest.approx(9.0)
    loss.backward()
    # d/dQ = 2 (Q - y) / B on the taken action, and nothing elsewhere.
    assert q_CBA.grad is not None
    assert q_CBA.grad.tolist() == [[[0, 0, 1], [-3, 0, 0]], [[0, 0, 2], [-2, 0, 0]]]


def test_actor_loss_by_hand() -> None:
    # Row 0: -(1.5 + 0.15 ln 2), row 1: -(3.5 + 0.1 ln 2), from the soft values above; their mean is the loss.
    assert actor_loss(LOG_PI_BA, Q_CBA, ALPHA).item() == pytest.approx(-2.5 - 0.125 * LN2)


def test_actor_gradient_by_hand_and_none_through_q() -> None:
    # With pi = softmax(z), dL/dz_a = pi_a (f_a - sum_b pi_b f_b), f_a = alpha log pi_a - min Q_a. In row 0
    # f = (-0.1 ln 2 - 1, -0.2 ln 2, -0.2 ln 2 - 4), its mean under pi is -1.5 - 0.15 ln 2, so
    # dz = (1/2 (0.5 + 0.05 ln 2), 1/4 (1.5 - 0.05 ln 2), 1/4 (-2.5 - 0.05 ln 2)).
    # In row 1 f = (-0.1 ln 2 - 2, -0.1 ln 2 - 5), its mean -3.5 - 0.1 ln 2, so dz = (1/2 * 1.5, 1/2 * (-1.5), 0).
    # Both are halved, since the loss is the mean of two rows.
    logits_BA = LOG_PI_BA.clone().requires_grad_()
    q_CBA = Q_CBA.clone().requires_grad_()
    actor_loss(torch.log_softmax(logits_BA, dim=-1), q_CBA, ALPHA).backward()
    rows = [
        [0.5 * (0.5 + 0.05 * LN2), 0.25 * (1.5 - 0.05 * LN2), 0.25 * (-2.5 - 0.05 * LN2)],
        [0.75, -0.75, 0.0],
    ]
    torch.testing.assert_close(logits_BA.grad, torch.tensor(rows, dtype=torch.float64) / 2)
    assert q_CBA.grad is None


@pytest.mark.parametrize(("mean_entropy", "direction"), [(0.5, 1.0), (0.1, -1.0), (0.2, 0.0)])
def test_alpha_loss_by_hand(mean_entropy: float, direction: float) -> None:
    # loss = alpha (H - 0.2) with alpha = 0.05, and its derivative by log alpha is the same: positive (alpha falls)
    # while the policy is too random, negative while it is too certain, 0 on target.
    log_alpha = torch.tensor(math.log(0.05), dtype=torch.float64, requires_grad=True)
    loss = alpha_loss(log_alpha, mean_entropy, 0.2)
    loss.backward()
    expected = 0.05 * (mean_entropy - 0.2)
    assert loss.item() == pytest.approx(expected)
    assert log_alpha.grad is not None
    assert log_alpha.grad.item() == pytest.approx(expected)
    assert math.copysign(direction, log_alpha.grad.item()) == direction


def _losses_and_gradients(logits_BA: Tensor, q_CBA: Tensor) -> tuple[Tensor, ...]:
    logits_BA, q_CBA = logits_BA.clone().requires_grad_(), q_CBA.clone().requires_grad_()
    log_pi_BA = torch.log_softmax(logits_BA, dim=-1)
    target_B = soft_value(log_pi_BA, q_CBA, ALPHA).detach()
    critic = critic_loss(q_CBA, torch.tensor([1, 0]), 0.9 * target_B)
    actor = actor_loss(log_pi_BA, q_CBA, ALPHA)
    entropy_B = entropy(log_pi_BA)
    (critic + actor + entropy_B.sum() + soft_value(log_pi_BA, q_CBA, ALPHA).sum()).backward()
    assert logits_BA.grad is not None
    assert q_CBA.grad is not None
    return critic.detach(), actor.detach(), entropy_B.detach(), target_B, logits_BA.grad, q_CBA.grad


@pytest.mark.parametrize("garbage", [0.0, -1e9, 1e9, torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("more", [1, 5])
def test_padding_changes_neither_losses_nor_gradients(more: int, garbage: float) -> None:
    padded_logits_BA = torch.nn.functional.pad(LOG_PI_BA, (0, more), value=-torch.inf)
    padded_q_CBA = torch.nn.functional.pad(Q_CBA, (0, more), value=garbage)
    *bare, logits_grad_BA, q_grad_CBA = _losses_and_gradients(LOG_PI_BA, Q_CBA)
    *padded, padded_logits_grad_BA, padded_q_grad_CBA = _losses_and_gradients(padded_logits_BA, padded_q_CBA)
    for ours, theirs in zip(padded, bare, strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(padded_logits_grad_BA[:, :3], logits_grad_BA)
    torch.testing.assert_close(padded_q_grad_CBA[..., :3], q_grad_CBA)
    assert not padded_logits_grad_BA[:, 3:].any(), "padded actions received a gradient"
    assert not padded_q_grad_CBA[..., 3:].any(), "padded actions received a gradient"


def test_an_action_whose_probability_underflows_does_no_harm() -> None:
    logits_BA = torch.tensor([[0.0, -200.0]], requires_grad=True)  # exp(-200) is 0 in float32
    log_pi_BA = torch.log_softmax(logits_BA, dim=-1)
    loss = actor_loss(log_pi_BA, torch.tensor([[[1.0, 50.0]]]), ALPHA) + entropy(log_pi_BA).sum()
    loss.backward()
    assert loss.item() == -1.0
    assert logits_BA.grad is not None
    assert torch.isfinite(logits_BA.grad).all()


def test_a_policy_that_is_nan_is_not_taken_for_padding() -> None:
    log_pi_BA = torch.tensor([[torch.nan, torch.nan]])
    assert actor_loss(log_pi_BA, torch.zeros(1, 1, 2), ALPHA).isnan()
    assert entropy(log_pi_BA).isnan().all()


LOGITS = st.lists(st.floats(-30, 30), min_size=1, max_size=6)


@settings(deadline=None, max_examples=60)
@given(LOGITS)
def test_entropy_lies_between_zero_and_that_of_the_uniform_policy(logits: list[float]) -> None:
    log_pi_BA = torch.log_softmax(torch.tensor([logits], dtype=torch.float64), dim=-1)
    assert -1e-12 <= entropy(log_pi_BA).item() <= math.log(len(logits)) + 1e-12


@settings(deadline=None, max_examples=60)
@given(LOGITS, st.integers(1, 3), st.floats(0, 1), st.data())
def test_soft_value_equals_brute_force(logits: list[float], critics: int, alpha: float, data: st.DataObject) -> None:
    row = st.lists(st.floats(-10, 10), min_size=len(logits), max_size=len(logits))
    q = data.draw(st.lists(row, min_size=critics, max_size=critics))
    total = sum(math.exp(logit) for logit in logits)
    expected = 0.0
    for action, logit in enumerate(logits):
        pi = math.exp(logit) / total
        expected += pi * (min(values[action] for values in q) - alpha * math.log(pi))
    log_pi_BA = torch.log_softmax(torch.tensor([logits], dtype=torch.float64), dim=-1)
    q_CBA = torch.tensor(q, dtype=torch.float64)[:, None]
    assert soft_value(log_pi_BA, q_CBA, alpha).item() == pytest.approx(expected, abs=1e-9)
