"""The equations of SAC-GLAM and PPO-GLAM as pure functions: sums over actions under the mask, means over rows.

Shapes: B rows, A actions, C critics, W windows, T steps. A padded action has log pi = -inf and so pi = 0; every
product with its log pi is taken as 0, which is the limit.
"""

import torch
from torch import Tensor

_LEAST_SPREAD = 1e-6  # of Q, below which actions count as equal


def expectation(log_pi_BA: Tensor, value_BA: Tensor) -> Tensor:
    """sum_a pi(a|s) value(s, a), shape (B,); padded actions contribute 0, whatever their value."""
    pi_BA = log_pi_BA.exp()
    # Mask the value before the product; afterwards, 0 * NaN would still reach the gradient.
    return (pi_BA * value_BA.masked_fill(pi_BA == 0, 0.0)).sum(dim=-1)


def entropy(log_pi_BA: Tensor) -> Tensor:
    """H(pi(.|s)) = -sum_a pi log pi, in nats, shape (B,)."""
    return -expectation(log_pi_BA, finite(log_pi_BA))


def uniform_entropy(log_pi_BA: Tensor) -> Tensor:
    """ln |A(s)|, the entropy of the random policy, in nats, shape (B,)."""
    return (log_pi_BA != -torch.inf).sum(dim=-1).float().log()


def finite(log_pi_BA: Tensor) -> Tensor:
    """log pi with padding's -inf replaced by 0, so that 0 * log 0 and its gradient are 0 rather than NaN."""
    return log_pi_BA.masked_fill(log_pi_BA == -torch.inf, 0.0)


def soft_value(log_pi_BA: Tensor, q_CBA: Tensor, alpha: float) -> Tensor:
    """V(s) = sum_a pi(a|s) (min_c Q_c(s, a) - alpha log pi(a|s)), shape (B,) (the expectation in Eq. 3)."""
    return expectation(log_pi_BA, q_CBA.min(dim=0).values - alpha * finite(log_pi_BA))


def lambda_returns(reward_WT: Tensor, next_value_WT: Tensor, gamma: float, lambda_: float) -> Tensor:
    """G_t = r_t + gamma ((1 - lambda) V_{t+1} + lambda G_{t+1}) over time, the last axis.

    After the last step G is V: 0 if the episode terminated there, the state's value if it was truncated or
    continues. With lambda 1 only this value counts: the n-step return of Eq. 3. Off-policy this is Peng's Q(lambda)
    (Peng and Williams, 1996), on-policy TD(lambda).
    """
    return_WT = torch.empty_like(next_value_WT)
    following_W = next_value_WT[..., -1]
    for t in reversed(range(reward_WT.shape[-1])):
        mixed_W = (1 - lambda_) * next_value_WT[..., t] + lambda_ * following_W
        following_W = return_WT[..., t] = reward_WT[..., t] + gamma * mixed_W
    return return_WT


def taken(value_BA: Tensor, action_B: Tensor) -> Tensor:
    """The value of the action taken, such as its log pi, shape (B,); of Q (C, B, A), shape (C, B)."""
    return value_BA.gather(-1, action_B.expand(value_BA.shape[:-1])[..., None]).squeeze(-1)


def critic_loss(q_CBA: Tensor, action_B: Tensor, target_B: Tensor) -> Tensor:
    """sum_c mean_B (Q_c(s, a) - y)^2, a scalar."""
    return (taken(q_CBA, action_B) - target_B).square().mean(dim=-1).sum()


def actor_loss(log_pi_BA: Tensor, q_CBA: Tensor, alpha: float) -> Tensor:
    """mean_B sum_a pi(a|s) (alpha log pi(a|s) - min_c Q_c(s, a)), a scalar; no gradient through Q."""
    return -soft_value(log_pi_BA, q_CBA.detach(), alpha).mean()


def imitation_loss(log_prob_B: Tensor, advantage_B: Tensor) -> Tensor:
    """-mean_B log pi(a|s) max(A, 0), a scalar; with A = R - V(s) this is Eq. 2 of Oh et al. (2018)."""
    return -(log_prob_B * advantage_B.clamp(min=0)).mean()


def at_least(q_CBA: Tensor, known_BA: Tensor, unreachable: float = 0.0) -> Tensor:
    """max(Q, known) where the known value exceeds `unreachable`, Q elsewhere, shape (C, B, A)."""
    return torch.where(known_BA > unreachable, torch.maximum(q_CBA, known_BA), q_CBA)


def capped_untried(q_CBA: Tensor, known_BA: Tensor, gamma: float, unreachable: float = 0.0) -> Tensor:
    """Q, but at most the best known value, discounted once, for actions whose value is unknown (-inf).

    That is no better than if the action wasted a step. Rows without a known path stay as they are.
    """
    best_B = known_BA.amax(dim=-1)
    most_B = best_B - (1.0 - gamma) * best_B.abs()  # gamma times the value, or below it if values are negative
    unknown_BA = known_BA.isneginf() & (best_B > unreachable)[:, None]
    return torch.where(unknown_BA, torch.minimum(q_CBA, most_B[:, None]), q_CBA)


def best_known(log_pi_BA: Tensor, known_BA: Tensor, unreachable: float = 0.0) -> tuple[Tensor, Tensor]:
    """The best known value, and the mean log pi of its actions (0 if it does not exceed `unreachable`), both (B,)."""
    value_B = known_BA.amax(dim=-1)
    best_BA = ((known_BA == value_B[:, None]) & (known_BA > unreachable)).float()
    share_BA = best_BA / best_BA.sum(dim=-1, keepdim=True).clamp(min=1.0)
    return value_B, (share_BA * finite(log_pi_BA)).sum(dim=-1)


def relative_advantage(return_B: Tensor, value_B: Tensor, log_pi_BA: Tensor, q_CBA: Tensor) -> Tensor:
    """(R - V(s)) / sum_a pi(a|s) |min_c Q_c(s, a) - V(s)|, at most 1, shape (B,); independent of the scale of rewards.

    R - V would weigh an ordinary step by its cost relative to the largest reward anywhere, that is, hardly at all.
    """
    spread_B = expectation(log_pi_BA, (q_CBA.min(dim=0).values - value_B[:, None]).abs())
    return ((return_B - value_B) / spread_B.clamp(min=_LEAST_SPREAD)).clamp(max=1.0)


def alpha_loss(log_alpha: Tensor, entropy_mean: float, target_entropy: float) -> Tensor:
    """alpha (H - H_target): alpha falls while the policy's entropy is above its target."""
    return log_alpha.exp() * (entropy_mean - target_entropy)


def clipped_loss(ratio_B: Tensor, advantage_B: Tensor, clip: float) -> Tensor:
    """-mean_B min(r A, clip(r, 1 - eps, 1 + eps) A), a scalar (Schulman et al., 2017, Eq. 7)."""
    clipped_B = ratio_B.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratio_B * advantage_B, clipped_B * advantage_B).mean()


def value_loss(value_B: Tensor, return_B: Tensor) -> Tensor:
    """mean_B (V(s) - R)^2, a scalar."""
    return (value_B - return_B).square().mean()
