"""A policy and a critic head on one language model: what SAC's and PPO's models have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sacglam.errors import CheckpointError
from sacglam.models.base import ACTOR, CRITIC, LMOutput, PackedLM
from sacglam.models.policy_head import PolicyHead
from sacglam.models.tokens import TokenisedQuery

Backbone = Literal["shared", "frozen", "separate"]


def trained_adapters(backbone: Backbone) -> list[str]:
    """The LoRA adapters that learn with this critic backbone; the actor's is the first."""
    return [ACTOR, CRITIC] if backbone == "separate" else [ACTOR]


class AgentModel(ABC):
    """Everything that learns: the LoRA adapters of a language model and a critic head on its hidden states."""

    def __init__(self, lm: PackedLM, heads: nn.Module, policy: PolicyHead, backbone: Backbone) -> None:
        """`lm` holds the adapters named by `trained_adapters(backbone)`; `heads` reads an `LMOutput`."""
        self._lm = lm
        self._heads = heads
        self._policy = policy
        self._critic_adapter = trained_adapters(backbone)[-1]
        self._adapters = trained_adapters(backbone)
        self._detach = backbone == "frozen"

    @property
    def module(self) -> nn.Module:
        """All weights, for what shares them out over ranks; it is never called as a whole."""
        return nn.ModuleList([self._lm.module, *self._head_modules().values()])

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self._heads.parameters()).device

    @property
    def critic_trains_actor(self) -> bool:
        """Whether the critic's gradients reach the actor's adapter."""
        return self._critic_adapter == ACTOR and not self._detach

    @abstractmethod
    def evaluate(self, packed: Any) -> Any:
        """Policy and critic at the packed states, with gradients where they are enabled."""

    def _forward(self, packed: Any) -> tuple[LMOutput, Tensor]:
        """The actor's output and what the critic's heads make of theirs, with gradients where they are enabled."""
        actor = self._lm.forward(packed, ACTOR)
        critic = actor if self._critic_adapter == ACTOR else self._lm.forward(packed, self._critic_adapter)
        return actor, self._heads(_detached(critic) if self._detach else critic)

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
            raise CheckpointError(
                f"{len(odd)} tensors do not fit this model, adapter or critic, among them {shown}; load them with the "
                "settings of model, algo.type and critic that they were saved with"
            )
        for name, tensor in own.items():
            tensor.copy_(state[name])

    def learned(self) -> list[nn.Parameter]:
        """The parameters behind `state()`, in its order."""
        return list(self._named().values())

    def _named(self) -> dict[str, nn.Parameter]:
        adapters = {
            f"lora.{adapter}.{name}": parameter
            for adapter in self._adapters
            for name, parameter in self._lm.adapter_parameters(adapter).items()
        }
        heads = {
            f"{part}.{name}": parameter
            for part, module in self._head_modules().items()
            for name, parameter in module.named_parameters()
        }
        return adapters | heads

    def _head_modules(self) -> dict[str, nn.Module]:
        """The modules beside the language model, by the first part of their parameters' names in `state()`."""
        return {"heads": self._heads}


def _shape(tensors: dict[str, Tensor], name: str) -> tuple[int, ...] | None:
    return tuple(tensors[name].shape) if name in tensors else None


def _detached(output: LMOutput) -> LMOutput:
    return replace(
        output,
        log_probs_BA=output.log_probs_BA.detach(),
        action_hidden_BAH=output.action_hidden_BAH.detach(),
        prompt_hidden_BH=output.prompt_hidden_BH.detach(),
    )
