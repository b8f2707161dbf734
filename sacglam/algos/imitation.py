"""Behavioural cloning, which trains the policy on demonstrations, if any, before the first step."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from sacglam.algos.base import Algorithm
from sacglam.algos.equations import finite, taken
from sacglam.clock import PhaseClock
from sacglam.models.agent_model import AgentModel
from sacglam.models.packed_lm import ACTOR
from sacglam.types import Window

_SMOOTHING = 0.1


class Imitation(Algorithm):
    """Cross-entropy on the demonstrated actions, with smoothed labels, so that the policy can still explore.

    -mean_B [(1 - e) log pi(a|s) + e mean_b log pi(b|s)]. The critic's own weights learn nothing.
    """

    def __init__(self, model: AgentModel, clock: PhaseClock) -> None:
        self._model, self._clock = model, clock

    @override
    def collate(self, rows: Sequence[Window]) -> tuple[Any, Tensor]:
        packed = self._model.pack([self._model.prompt.at(row, 0) for row in rows])
        return packed, self._model.tensor([row.actions[0] for row in rows])

    @override
    def losses(self, batch: tuple[Any, Tensor], update: int) -> tuple[Tensor, dict[str, Tensor]]:
        packed, action_B = batch
        with self._clock.phase("forward"):
            log_pi_BA = self._model.policy(self._model.lm.forward(packed, ACTOR))
            taken_B = taken(log_pi_BA, action_B)
            every_B = finite(log_pi_BA).sum(dim=-1) / (log_pi_BA != -torch.inf).sum(dim=-1)
            loss = -((1 - _SMOOTHING) * taken_B + _SMOOTHING * every_B).mean()
            right = (log_pi_BA.argmax(dim=-1) == action_B).double().mean()
        return loss, {"cloning_loss": loss.detach(), "cloning_accuracy": right}
