"""PPO's model: policy and state value on one language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from typing_extensions import override

from sacglam.models.agent_model import AgentModel


@dataclass(frozen=True)
class PolicyValue:
    """Policy and value at B states: log pi (natural log; -inf on padding), V(s), and which actions exist."""

    log_pi_BA: Tensor
    value_B: Tensor
    actions_BA: Tensor


class ActorValue(AgentModel):
    """Policy and V(s) from one packed forward pass (Carta et al., 2023)."""

    @override
    def evaluate(self, packed: Any) -> PolicyValue:
        actor, value_B = self._forward(packed)
        return PolicyValue(self.policy(actor), value_B, actor.actions_BA)
