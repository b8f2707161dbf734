"""The models of SAC and PPO: a policy and Q functions, or a state value, on one language model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from typing_extensions import override

from sacglam.config.sections import CriticConfig
from sacglam.models.agent_model import AgentModel, for_each
from sacglam.models.heads import PolicyHead, QHeads, ValueHead
from sacglam.models.packed_lm import ACTOR, PackedLM, target_of
from sacglam.models.packing import Packed
from sacglam.models.tokens import QueryTokenizer
from sacglam.types import Query

_Q_STATES = 32  # per pass of `q_values`, which must fit alongside an update's memory
Lerp = Callable[[Sequence[nn.Parameter], Sequence[nn.Parameter], float], None]
"""targets <- (1 - share) targets + share online, called with these three: see `Backend.lerp`."""


@dataclass(frozen=True)
class PolicyAndQ:
    """Policy and critic at B states: log pi (natural log; -inf on padding) and Q values."""

    log_pi_BA: Tensor
    q_CBA: Tensor


class ActorCritic(AgentModel):
    """SAC's policy and Q functions from one packed forward pass, and their target network.

    The target network is a second LoRA adapter and a second set of heads; the base model is never copied.
    """

    def __init__(self, lm: PackedLM, tokenizer: QueryTokenizer, policy: PolicyHead, critic: CriticConfig) -> None:
        super().__init__(lm, tokenizer, policy, critic)
        self._target_heads = self.make_heads(critic).requires_grad_(False)
        self._target_adapter = target_of(self._critic_adapter) if critic.target_backbone == "adapter" else None
        self._head_modules["target_heads"] = self._target_heads
        self._target_heads.load_state_dict(self._heads.state_dict())
        if self._target_adapter:
            for parameter in lm.adapter_parameters(self._target_adapter).values():
                parameter.requires_grad_(False)

    @override
    @classmethod
    def adapters(cls, critic: CriticConfig) -> list[str]:
        trained = super().adapters(critic)
        return [*trained, target_of(trained[-1])] if critic.target_backbone == "adapter" else trained

    @override
    def make_heads(self, critic: CriticConfig) -> QHeads:
        return QHeads(self.lm.hidden_size, critic).to(self.lm.device)

    @override
    def evaluate(self, packed: Packed, taken_B: Tensor | None = None) -> PolicyAndQ:
        """Policy and critic at packed states. With `taken_B` only Q of these actions is differentiated."""
        actor = self.lm.forward(packed, ACTOR)
        return PolicyAndQ(self.policy(actor), self._heads(self._for_critic(packed, actor), taken_B))

    def evaluate_with_target(self, packed: Packed, taken_B: Tensor) -> tuple[PolicyAndQ, PolicyAndQ]:
        """`evaluate` and `bootstrap` at the same states; a target on the online adapter needs no extra pass."""
        actor = self.lm.forward(packed, ACTOR)
        critic = self._for_critic(packed, actor)
        values = PolicyAndQ(self.policy(actor), self._heads(critic, taken_B))
        with torch.no_grad():
            read = self.lm.forward(packed, self._target_adapter) if self._target_adapter else critic
            return values, PolicyAndQ(values.log_pi_BA.detach(), self._target_heads(read))

    @torch.no_grad()
    def bootstrap(self, packed: Packed) -> PolicyAndQ:
        """Online policy and *target* Q values, for the bootstrap of Eq. 3."""
        actor = self.lm.forward(packed, ACTOR)
        adapter = self._target_adapter or self._critic_adapter
        critic = actor if adapter == ACTOR else self.lm.forward(packed, adapter)
        return PolicyAndQ(self.policy(actor), self._target_heads(critic))

    @override
    def q_values(self, queries: Sequence[Query]) -> list[npt.NDArray[np.float32]]:
        return for_each(queries, _Q_STATES, lambda some: self.evaluate(self.pack(some)).q_CBA.min(dim=0).values)

    @torch.no_grad()
    def update_target(self, tau: float, lerp: Lerp) -> None:
        """Exponential moving average of LoRA weights and heads: target <- (1 - tau) target + tau online.

        On several ranks `lerp` averages each rank's part of them.
        """
        targets, online = [*self._target_heads.parameters()], [*self._heads.parameters()]
        if self._target_adapter:
            targets += self.lm.adapter_parameters(self._target_adapter).values()
            online += self.lm.adapter_parameters(self._critic_adapter).values()
        lerp(targets, online, tau)


@dataclass(frozen=True)
class PolicyAndV:
    """Policy and value at B states: log pi (natural log; -inf on padding) and V(s)."""

    log_pi_BA: Tensor
    value_B: Tensor


class ActorValue(AgentModel):
    """PPO's policy and V(s) from one packed forward pass (Carta et al., 2023)."""

    @override
    def make_heads(self, critic: CriticConfig) -> ValueHead:
        return ValueHead(self.lm.hidden_size, critic.hidden).to(self.lm.device)

    @override
    def evaluate(self, packed: Packed) -> PolicyAndV:
        actor = self.lm.forward(packed, ACTOR)
        return PolicyAndV(self.policy(actor), self._heads(self._for_critic(packed, actor)))
