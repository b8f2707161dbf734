"""AWAC (Nair et al., 2020) with sacglam's Q functions: an algorithm of one's own in one file.

    PYTHONPATH=. sacglam train docs/examples/awac.yaml

The critic is SAC's. The actor imitates the actions of the replay, the more the better Q says they are than the policy
(Eq. 13): the gradient of log pi(a|s) has the weight exp(A(s, a) / temperature).
"""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sacglam.algos import math as equations
from sacglam.algos.sac import Sac, SacBatch, SacConfig, critic_losses, last_values
from sacglam.clock import PhaseClock
from sacglam.config.section import PositiveFloat
from sacglam.models.actor_critic import ActorCritic

_MOST = 20.0  # weight of one step, or a single one would outweigh its batch


class AwacConfig(SacConfig):
    """SAC's settings, of which `alpha` counts for nothing here, and one of its own."""

    entropy_settings: ClassVar[str] = "algo.temperature"

    type: str = "docs.examples.awac:AwacConfig"
    temperature: PositiveFloat = 0.1
    """Advantage at which an action's weight is e times that of an average one; large: behavioural cloning."""
    soft_target: ClassVar[bool] = False

    def build(self, model: Any, total_updates: int, rng: np.random.Generator, clock: PhaseClock) -> "Awac":
        """The learning rule on an `ActorCritic`."""
        return Awac(model, self, total_updates, clock)


class Awac(Sac):
    """SAC with another actor loss, and without a temperature to learn."""

    def __init__(self, model: ActorCritic, config: AwacConfig, total_updates: int, clock: PhaseClock) -> None:
        super().__init__(model, config, total_updates, clock)
        self._awac = config

    def losses(self, batch: SacBatch, update: int) -> tuple[Tensor, dict[str, Tensor]]:
        """SAC's critic loss, and advantage-weighted regression on the actions of the batch."""
        config = self._awac
        with self._clock.phase("target"):
            last_value_W = last_values(self._model, batch, 0.0, config)
        with self._clock.phase("forward"):
            values, loss, metrics = critic_losses(self._model, batch, last_value_W, 0.0, config)
            if not self._warming_up(update):
                log_prob_B = values.log_pi_BA.gather(-1, batch.action_B[:, None]).squeeze(-1)
                actor = awac_loss(values.log_pi_BA, log_prob_B, values.q_CBA, batch.action_B, config.temperature)
                loss = loss + actor
                metrics["actor_loss"] = actor.detach()
        return loss, metrics

    def after_step(self, metrics: dict[str, float], update: int, lerp: Any) -> dict[str, float]:
        """Move the target network."""
        with self._clock.phase("target"):
            self._model.update_target(self._awac.tau, lerp)
        return {}


def awac_loss(log_pi_BA: Tensor, log_prob_B: Tensor, q_CBA: Tensor, action_B: Tensor, temperature: float) -> Tensor:
    """-mean_B exp(A / temperature) log pi(a|s), a scalar, with A = Q(s, a) - V(s); no gradient through the weight."""
    with torch.no_grad():
        value_B = equations.soft_value(log_pi_BA, q_CBA, 0.0)
        advantage_B = equations.taken(q_CBA, action_B).min(dim=0).values - value_B
        weight_B = (advantage_B / temperature).exp().clamp(max=_MOST)
    return -(weight_B * log_prob_B).mean()
