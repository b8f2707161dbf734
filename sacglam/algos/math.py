"""The equations of SAC-GLAM and PPO-GLAM as pure functions: sums over actions under the mask, means over rows.

Shapes: B rows, A actions, C critics, T steps. A padded action has log pi = -inf and so pi = 0; every product with its
log pi is taken as 0, which is the limit.
"""

import torch
from torch import Tensor


def expectation(log_pi_BA: Tensor, value_BA: Tensor) -> Tensor:
    """sum_a pi(a|s) value(s, a), shape (B,); padded actions count as nothing, whatever their value."""
    pi_BA = log_pi_BA.exp()
    # The value is masked before the product: after it, 0 * NaN would still reach the gradient.
    return (pi_BA * value_BA.masked_fill(pi_BA == 0, 0.0)).sum(dim=-1)


def entropy(log_pi_BA: Tensor) -> Tensor:
    """H(pi(.|s)) = -sum_a pi log pi, in nats, shape (B,)."""
    return -expectation(log_pi_BA, finite(log_pi_BA))


def finite(log_pi_BA: Tensor) -> Tensor:
    """log pi with padding's -inf replaced by 0, so that 0 * log 0 and its gradient are 0 rather than NaN."""
    return log_pi_BA.masked_fill(log_pi_BA == -torch.inf, 0.0)


def soft_value(log_pi_BA: Tensor, q_CBA: Tensor, alpha: float) -> Tensor:
    """V(s) = sum_a pi(a|s) (min_c Q_c(s, a) - alpha log pi(a|s)), shape (B,) (the expectation in Eq. 3)."""
    return expectation(log_pi_BA, q_CBA.min(dim=0).values - alpha * finite(log_pi_BA))


def td_target(reward_B: Tensor, discount_B: Tensor, terminated_B: Tensor, next_value_B: Tensor) -> Tensor:
    """y = sum_{i<k} gamma^i r_{t+i} + gamma^k (1 - terminated) V(s_{t+k}), shape (B,) (Eq. 3).

    `reward_B` is the discounted sum already, `discount_B` is gamma^k with k the window's own length. Truncation
    bootstraps, termination does not.
    """
    return reward_B + (discount_B * next_value_B).masked_fill(terminated_B, 0.0)


def taken(q_CBA: Tensor, action_B: Tensor) -> Tensor:
    """Q of the action taken, shape (C, B)."""
    return q_CBA.gather(-1, action_B.expand(q_CBA.shape[0], -1)[..., None]).squeeze(-1)


def critic_loss(q_CBA: Tensor, action_B: Tensor, target_B: Tensor) -> Tensor:
    """sum_c mean_B (Q_c(s, a) - y)^2, a scalar."""
    return (taken(q_CBA, action_B) - target_B).square().mean(dim=-1).sum()


def actor_loss(log_pi_BA: Tensor, q_CBA: Tensor, alpha: float) -> Tensor:
    """mean_B sum_a pi(a|s) (alpha log pi(a|s) - min_c Q_c(s, a)), a scalar; no gradient through Q."""
    return -soft_value(log_pi_BA, q_CBA.detach(), alpha).mean()


def alpha_loss(log_alpha: Tensor, entropy_mean: float, target_entropy: float) -> Tensor:
    """alpha (H - H_target): alpha falls while the policy is more random than the target asks."""
    return log_alpha.exp() * (entropy_mean - target_entropy)


def advantages(reward_T: Tensor, value_T: Tensor, bootstrap: float, gamma: float, gae_lambda: float) -> Tensor:
    """Generalised advantage estimates of T consecutive steps, shape (T,) (Schulman et al., 2016, Eq. 16).

    delta_t = r_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lambda A_{t+1}. `bootstrap` is V of what follows the
    last step: 0 where the episode terminated there, the state's value where it was truncated or goes on.
    """
    advantage_T = torch.empty_like(value_T)
    following, next_value = 0.0, bootstrap
    for t in reversed(range(len(value_T))):
        delta = float(reward_T[t]) + gamma * next_value - float(value_T[t])
        following = delta + gamma * gae_lambda * following
        advantage_T[t] = following
        next_value = float(value_T[t])
    return advantage_T


def clipped_loss(ratio_B: Tensor, advantage_B: Tensor, clip: float) -> Tensor:
    """-mean_B min(r A, clip(r, 1 - eps, 1 + eps) A), a scalar (Schulman et al., 2017, Eq. 7)."""
    clipped_B = ratio_B.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratio_B * advantage_B, clipped_B * advantage_B).mean()


def value_loss(value_B: Tensor, return_B: Tensor) -> Tensor:
    """mean_B (V(s) - R)^2, a scalar."""
    return (value_B - return_B).square().mean()
