"""Actor and critic on one language model, with the critic's target network beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sacglam.errors import CheckpointError
from sacglam.models.base import ACTOR, CRITIC, LMOutput, PackedLM, target_of
from sacglam.models.heads import QHeads
from sacglam.models.policy_head import PolicyHead
from sacglam.models.tokens import TokenisedQuery

Backbone = Literal["shared", "frozen", "separate"]
TargetBackbone = Literal["adapter", "online"]


@dataclass(frozen=True)
class PolicyValues:
    """Policy and critic at B states: log pi (natural log; -inf on padding), Q values, and which actions exist."""

    log_pi_BA: Tensor
    q_CBA: Tensor
    actions_BA: Tensor


def adapters_needed(backbone: Backbone, target_backbone: TargetBackbone) -> list[str]:
    """The LoRA adapters a variant of the critic needs; the actor's is the first."""
    critic = CRITIC if backbone == "separate" else ACTOR
    trained = [ACTOR] if critic == ACTOR else [ACTOR, CRITIC]
    return trained + ([target_of(critic)] if target_backbone == "adapter" else [])


class ActorCritic:
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
        self._lm = lm
        self._heads = heads
        self._target_heads = target_heads.requires_grad_(False)
        self._policy = policy
        self._critic_adapter = CRITIC if backbone == "separate" else ACTOR
        self._adapters = adapters_needed(backbone, target_backbone)
        self._detach = backbone == "frozen"
        self._target_adapter = target_of(self._critic_adapter) if target_backbone == "adapter" else None
        self._target_heads.load_state_dict(self._heads.state_dict())
        if self._target_adapter:
            for parameter in lm.adapter_parameters(self._target_adapter).values():
                parameter.requires_grad_(False)

    @property
    def module(self) -> nn.Module:
        """All weights, for what shares them out over ranks; it is never called as a whole."""
        return nn.ModuleList([self._lm.module, self._heads, self._target_heads])

    @property
    def critic_trains_actor(self) -> bool:
        """Whether Q gradients reach the actor's adapter."""
        return self._critic_adapter == ACTOR and not self._detach

    def evaluate(self, packed: Any) -> PolicyValues:
        """Online policy and Q values, with gradients where they are enabled."""
        actor = self._lm.forward(packed, ACTOR)
        critic = actor if self._critic_adapter == ACTOR else self._lm.forward(packed, self._critic_adapter)
        q_CBA = self._heads(_detached(critic) if self._detach else critic)
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

    def pack(self, queries: Sequence[TokenisedQuery]) -> Any:
        """Queries as the language model takes them."""
        return self._lm.pack(queries)

    def actor_parameters(self) -> list[nn.Parameter]:
        """The actor's LoRA weights; with a shared backbone the critic learns through them, too."""
        return list(self._lm.adapter_parameters(ACTOR).values())

    def critic_parameters(self) -> list[nn.Parameter]:
        """The critic's own weights: heads, and with a separate backbone its LoRA weights."""
        own = [] if self._critic_adapter == ACTOR else list(self._lm.adapter_parameters(CRITIC).values())
        return [*self._heads.parameters(), *own]

    def state(self) -> dict[str, Tensor]:
        """Everything that learns or follows, by a flat name; the frozen base model is not part of it."""
        return {name: parameter.detach() for name, parameter in self._named().items()}

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take over what `state()` gave, in place.

        Raises:
            CheckpointError: it was taken of another model, adapter or critic.
        """
        own = self.state()
        odd = [name for name in own.keys() | state.keys() if _shape(own, name) != _shape(state, name)]
        if odd:
            shown = "; ".join(f"{n}: expected {_shape(own, n)}, got {_shape(state, n)}" for n in sorted(odd)[:3])
            raise CheckpointError(f"{len(odd)} tensors do not fit this model, adapter or critic, among them {shown}")
        for name, tensor in own.items():
            tensor.copy_(state[name])

    def learned(self) -> list[nn.Parameter]:
        """The parameters behind `state()`, in its order."""
        return list(self._named().values())

    def _named(self) -> dict[str, nn.Parameter]:
        parameters = {
            f"lora.{adapter}.{name}": parameter
            for adapter in self._adapters
            for name, parameter in self._lm.adapter_parameters(adapter).items()
        }
        parameters |= {f"heads.{name}": parameter for name, parameter in self._heads.named_parameters()}
        return parameters | {f"target_heads.{n}": parameter for n, parameter in self._target_heads.named_parameters()}

    def _target_pairs(self) -> Sequence[tuple[Tensor, Tensor]]:
        pairs = [(t, o) for t, o in zip(self._target_heads.parameters(), self._heads.parameters(), strict=True)]
        if self._target_adapter:
            online = self._lm.adapter_parameters(self._critic_adapter)
            target = self._lm.adapter_parameters(self._target_adapter)
            pairs += [(target[name], online[name]) for name in online]
        return pairs


def _shape(tensors: dict[str, Tensor], name: str) -> tuple[int, ...] | None:
    return tuple(tensors[name].shape) if name in tensors else None


def _detached(output: LMOutput) -> LMOutput:
    return replace(
        output,
        action_hidden_BAH=output.action_hidden_BAH.detach(),
        prompt_hidden_BH=output.prompt_hidden_BH.detach(),
    )
