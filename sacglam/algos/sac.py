"""SAC-GLAM: discrete soft actor-critic on a language model's candidate actions (paper, Section 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sacglam.algos import math as equations
from sacglam.models.actor_critic import ActorCritic


@dataclass(frozen=True)
class SacBatch:
    """B transitions ready for the model. `next_packed` holds only the rows that bootstrap."""

    packed: Any
    action_B: Tensor
    reward_B: Tensor
    discount_B: Tensor
    bootstraps_B: Tensor  # bool: the window did not end in termination
    next_packed: Any | None  # the bootstrapping rows, in order; None where there are none

    @property
    def rows(self) -> int:
        """B."""
        return len(self.action_B)


@dataclass(frozen=True)
class SacLosses:
    """The joint loss of one batch and what to report of it (means over rows)."""

    loss: Tensor
    entropy: float
    metrics: dict[str, float]


def sac_losses(model: ActorCritic, batch: SacBatch, alpha: float, train_actor: bool) -> SacLosses:
    """Critic and actor loss from one forward pass; without `train_actor` (warm-up) the critic's alone."""
    target_B = _targets(model, batch, alpha)
    values = model.evaluate(batch.packed)
    critic = equations.critic_loss(values.q_CBA, batch.action_B, target_B)
    entropy_B = equations.entropy(values.log_pi_BA.detach())
    loss = critic
    metrics = {
        "critic_loss": critic.item(),
        "entropy": entropy_B.mean().item(),
        "q": equations.taken(values.q_CBA.detach(), batch.action_B).mean().item(),
        "target": target_B.mean().item(),
    }
    if train_actor:
        actor = equations.actor_loss(values.log_pi_BA, values.q_CBA, alpha)
        loss = critic + actor
        metrics["actor_loss"] = actor.item()
    return SacLosses(loss, metrics["entropy"], metrics)


@torch.no_grad()
def _targets(model: ActorCritic, batch: SacBatch, alpha: float) -> Tensor:
    """y of Eq. 3. Rows that terminate within their window need no forward pass and get none."""
    next_value_B = torch.zeros_like(batch.reward_B)
    if batch.next_packed is not None:
        bootstrap = model.bootstrap(batch.next_packed)
        next_value_B[batch.bootstraps_B] = equations.soft_value(bootstrap.log_pi_BA, bootstrap.q_CBA, alpha)
    return equations.td_target(batch.reward_B, batch.discount_B, ~batch.bootstraps_B, next_value_B)
