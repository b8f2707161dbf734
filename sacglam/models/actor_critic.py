"""SAC's model: policy and Q functions on one language model, with the critic's target network beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sacglam.models.agent_model import AgentModel, Backbone, trained_adapters
from sacglam.models.base import ACTOR, PackedLM, target_of
from sacglam.models.heads import QHeads
from sacglam.models.policy_head import PolicyHead

TargetBackbone = Literal["adapter", "online"]


@dataclass(frozen=True)
class PolicyValues:
    """Policy and critic at B states: log pi (natural log; -inf on padding), Q values, and which actions exist."""

    log_pi_BA: Tensor
    q_CBA: Tensor
    actions_BA: Tensor


def adapters_needed(backbone: Backbone, target_backbone: TargetBackbone) -> list[str]:
    """The LoRA adapters a variant of the critic needs; the actor's is the first."""
    trained = trained_adapters(backbone)
    return trained + ([target_of(trained[-1])] if target_backbone == "adapter" else [])


class ActorCritic(AgentModel):
    """Policy and Q functions from one packed forward pass, and their target from LoRA and head averages.

    The base model is never copied: the target network is a second LoRA adapter and a second set of heads.
    """

    def __init__(
        self,
        lm: PackedLM,
        heads: QHeads,
        target_heads: QHeads,
        policy: PolicyHead,
        backbone: Backbone,
        target_backbone: TargetBackbone,
    ) -> None:
        """`lm` holds the adapters named by `adapters_needed(backbone, target_backbone)`."""
        super().__init__(lm, heads, policy, backbone)
        self._target_heads = target_heads.requires_grad_(False)
        self._adapters = adapters_needed(backbone, target_backbone)
        self._target_adapter = target_of(self._critic_adapter) if target_backbone == "adapter" else None
        self._target_heads.load_state_dict(self._heads.state_dict())
        if self._target_adapter:
            for parameter in lm.adapter_parameters(self._target_adapter).values():
                parameter.requires_grad_(False)

    def evaluate(self, packed: Any) -> PolicyValues:
        """Online policy and Q values, with gradients where they are enabled."""
        actor, q_CBA = self._forward(packed)
        return PolicyValues(self._policy(actor), q_CBA, actor.actions_BA)

    @torch.no_grad()
    def bootstrap(self, packed: Any) -> PolicyValues:
        """Online policy and *target* Q values, for the bootstrap of Eq. 3."""
        actor = self._lm.forward(packed, ACTOR)
        critic = actor
        adapter = self._target_adapter or self._critic_adapter
        if adapter != ACTOR:
            critic = self._lm.forward(packed, adapter)
        return PolicyValues(self._policy(actor), self._target_heads(critic), actor.actions_BA)

    @torch.no_grad()
    def update_target(self, tau: float) -> None:
        """Exponential moving average: target <- (1 - tau) target + tau online, over LoRA weights and heads."""
        for target, online in self._target_pairs():
            target.lerp_(online, tau)

    def _head_modules(self) -> dict[str, nn.Module]:
        return {**super()._head_modules(), "target_heads": self._target_heads}

    def _target_pairs(self) -> Sequence[tuple[Tensor, Tensor]]:
        pairs = [(t, o) for t, o in zip(self._target_heads.parameters(), self._heads.parameters(), strict=True)]
        if self._target_adapter:
            online = self._lm.adapter_parameters(self._critic_adapter)
            target = self._lm.adapter_parameters(self._target_adapter)
            pairs += [(target[name], online[name]) for name in online]
        return pairs
