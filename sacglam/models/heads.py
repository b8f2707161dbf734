"""The heads on a language model: the policy, and critics as small float32 MLPs on its hidden states."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor, nn

from sacglam.config.sections import CriticConfig, PolicyConfig
from sacglam.errors import ModelError
from sacglam.models.packed_lm import LMOutput

MAX_ACTIONS = 64
"""Outputs of a critic that reads only the observation."""


@dataclass(frozen=True)
class PolicyHead:
    """pi(a|o,g) = softmax over the candidates of their log-probabilities (paper, Eq. 2)."""

    length_normalised: bool = False
    temperature: float = 1.0

    @classmethod
    def of(cls, settings: PolicyConfig) -> Self:
        """The head for these settings, whose temperature must be resolved."""
        assert settings.temperature != "auto"  # see `sacglam.resolve`
        return cls(settings.length_normalised, settings.temperature)

    def __call__(self, output: LMOutput) -> Tensor:
        """log pi (B, A) from a packed forward pass, float32; -inf on padding."""
        return self.log_policy(output.log_probs_BA, output.lengths_BA, output.actions_BA)

    def log_policy(self, log_probs_BA: Tensor, lengths_BA: Tensor, actions_BA: Tensor) -> Tensor:
        """log pi (B, A) from sums over each action's tokens in nats; `actions_BA` marks the actions that exist.

        `lengths_BA` counts each action's tokens, 1 on padding.
        """
        score_BA = log_probs_BA / lengths_BA if self.length_normalised else log_probs_BA
        score_BA = (score_BA / self.temperature).masked_fill(~actions_BA, -torch.inf)
        return torch.log_softmax(score_BA, dim=-1)


def mlp(inputs: int, hidden: Sequence[int], outputs: int, between: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with ReLU or another function `between` them (paper, Appendix C: two hidden layers of 1,024)."""
    widths = [inputs, *hidden]
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), between()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


class ValueHead(nn.Module):
    """V(s) on the hidden state at the prompt's last position."""

    def __init__(self, hidden_size: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.value = mlp(hidden_size, hidden, 1)

    def forward(self, output: LMOutput) -> Tensor:
        """Values (B,), float32."""
        return self.value(output.prompt_hidden_BH.float()).squeeze(-1)


class QHeads(nn.Module):
    """`num_critics` independent Q functions, each with one value for every action of a state."""

    def __init__(
        self, hidden_size: int, config: CriticConfig, between: type[nn.Module] = nn.ReLU, relative: bool = True
    ) -> None:
        """`observation_action`: one output on each action's last token. `observation`: MAX_ACTIONS outputs on the
        prompt's last position; the last layer's row i is the learned embedding of action index i. With `score_weight`
        each critic adds w_c (l(a) - mean_b l(b)), with l(a) the action's log-probability and w_c learned from this
        initial value, so the head need not recover at the last token what the model knew at earlier ones. Unless
        `relative`, it adds w_c l(a): then a value does not depend on the other actions."""
        super().__init__()
        self._relative = relative
        weights_C = torch.full((config.num_critics,), config.first_score_weight)
        self.score_weights = nn.Parameter(weights_C) if config.score_weight else None
        self._on_actions = config.input == "observation_action"
        outputs = 1 if self._on_actions else MAX_ACTIONS
        heads = (mlp(hidden_size, config.hidden, outputs, between) for _ in range(config.num_critics))
        self.critics = nn.ModuleList(heads)

    def forward(self, output: LMOutput, taken_B: Tensor | None = None) -> Tensor:
        """Q values (C, B, A), float32; 0 on padding. With `taken_B` only those of these actions have gradients.

        The critic's loss reads no others, so MLPs on actions run backward for only one of a state's |A| actions.

        Raises:
            ModelError: with `observation` input, a state with more actions than the head has outputs.
        """
        mask_BA = output.actions_BA
        if self._on_actions:
            hidden_BAH = output.action_hidden_BAH.float()
            with torch.set_grad_enabled(torch.is_grad_enabled() and taken_B is None):
                q_CBA = self._on_each(hidden_BAH)
            if taken_B is not None:
                row_B1, taken_B1 = torch.arange(len(taken_B), device=taken_B.device)[:, None], taken_B[:, None]
                q_CB1 = self._on_each(hidden_BAH[row_B1, taken_B1])
                q_CBA = q_CBA.scatter(-1, taken_B1.expand_as(q_CB1), q_CB1)
        else:
            actions = mask_BA.shape[1]
            if actions > MAX_ACTIONS:
                raise ModelError(
                    f"critic.input 'observation' has {MAX_ACTIONS} outputs, got a state with {actions} actions; use "
                    "critic.input=observation_action, which has no such limit"
                )
            hidden_BH = output.prompt_hidden_BH.float()
            q_CBA = torch.stack([critic(hidden_BH)[:, :actions] for critic in self.critics])
        if self.score_weights is not None:
            score_BA = output.log_probs_BA
            if self._relative:  # what a state's actions have in common is left to the MLP
                mean_B = score_BA.masked_fill(~mask_BA, 0.0).sum(dim=-1) / mask_BA.sum(dim=-1)
                score_BA = score_BA - mean_B[:, None]
            q_CBA = q_CBA + self.score_weights[:, None, None] * score_BA
        return q_CBA.masked_fill(~mask_BA, 0.0)

    def _on_each(self, hidden_BAH: Tensor) -> Tensor:
        return torch.stack([critic(hidden_BAH).squeeze(-1) for critic in self.critics])
