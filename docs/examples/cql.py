"""Conservative Q-learning (Kumar et al., 2020) on SAC-GLAM: an algorithm of one's own in one file.

    PYTHONPATH=. sacglam train docs/examples/cql.yaml

It is SAC with one more term in the critic's loss, which lowers the Q values of actions that the replay has no evidence
for: of all actions of a state in proportion to e^Q, and not of the one taken.
"""

from typing import ClassVar

import torch
from torch import Tensor

from sacglam.algos import equations
from sacglam.algos.sac import Sac, SacBatch, SacConfig
from sacglam.config.section import NonNegativeFloat
from sacglam.config.sections import CriticConfig


class CqlConfig(SacConfig):
    """SAC's settings and one more."""

    rule: ClassVar[str] = "docs.examples.cql:Cql"

    type: str = "docs.examples.cql:CqlConfig"
    conservatism: NonNegativeFloat = 0.1
    """Weight of the conservative term; 0 is SAC."""

    def forward_passes(self, critic: CriticConfig) -> float:
        """SAC's, and one more with a gradient."""
        return super().forward_passes(critic) + 2 * self.batch_size


class Cql(Sac):
    """SAC with a conservative critic."""

    _config: CqlConfig

    def losses(self, batch: SacBatch, update: int) -> tuple[Tensor, dict[str, Tensor]]:
        """SAC's losses and the conservative term."""
        loss, metrics = super().losses(batch, update)
        values = self._model.evaluate(batch.packed)  # once more, since SAC differentiates only the Q of actions taken
        gap = conservative_loss(values.q_CBA, values.log_pi_BA, batch.action_B)
        return loss + self._config.conservatism * gap, {**metrics, "conservative_loss": gap.detach()}


def conservative_loss(q_CBA: Tensor, log_pi_BA: Tensor, action_B: Tensor) -> Tensor:
    """sum_c mean_B (log sum_a e^Q_c(s, a) - Q_c(s, a_taken)), a scalar (Kumar et al., Eq. 4); no padded actions."""
    q_CBA = q_CBA.masked_fill(log_pi_BA == -torch.inf, -torch.inf)
    return (q_CBA.logsumexp(dim=-1) - equations.taken(q_CBA, action_B)).mean(dim=-1).sum()
