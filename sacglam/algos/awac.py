"""AWAC: advantage-weighted regression on SAC's critic (Nair et al., 2020), online or from demonstrations alone."""

import torch
from torch import Tensor
from typing_extensions import override

from sacglam.algos import equations
from sacglam.algos.awac_settings import AwacConfig
from sacglam.algos.sac import OffPolicy, SacBatch
from sacglam.models.actor_critic import PolicyAndQ

_MOST = 20.0  # upper bound of a step's weight, so that no step outweighs its batch


class Awac(OffPolicy):
    """SAC's critic with a different actor, and no entropy coefficient."""

    _config: AwacConfig

    @override
    def actor_losses(self, values: PolicyAndQ, batch: SacBatch) -> dict[str, tuple[float, Tensor]]:
        q_CBA = self._with_known(values.q_CBA.detach(), batch)
        return {"actor": (1.0, awac_loss(values.log_pi_BA, q_CBA, batch.action_B, self._config.temperature))}


def awac_loss(log_pi_BA: Tensor, q_CBA: Tensor, action_B: Tensor, temperature: float) -> Tensor:
    """-mean_B exp(A / temperature) log pi(a|s), a scalar, with A = min_c Q_c(s, a) - V(s) (Nair et al., Eq. 13).

    A weight is at most 20, and has no gradient.
    """
    with torch.no_grad():
        value_B = equations.soft_value(log_pi_BA, q_CBA, 0.0)
        advantage_B = equations.taken(q_CBA, action_B).min(dim=0).values - value_B
        weight_B = (advantage_B / temperature).exp().clamp(max=_MOST)
    return -(weight_B * equations.taken(log_pi_BA, action_B)).mean()
