"""Critic heads: small float32 MLPs on the language model's hidden states."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from sacglam.errors import ModelError
from sacglam.models.base import LMOutput

CriticInput = Literal["observation_action", "observation"]


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """Linear layers with ReLU between them (paper, Appendix C: two hidden layers of 1,024)."""
    widths = [inputs, *hidden]
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


class ValueHead(nn.Module):
    """V(s) on the hidden state at the prompt's last position."""

    def __init__(self, hidden_size: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.value = mlp(hidden_size, hidden, 1)

    def forward(self, output: LMOutput) -> Tensor:
        """Values (B,), float32."""
        value_B: Tensor = self.value(output.prompt_hidden_BH.float()).squeeze(-1)
        return value_B


class QHeads(nn.Module):
    """`num_critics` independent Q functions, each with one value for every action of a state."""

    def __init__(
        self,
        hidden_size: int,
        hidden: Sequence[int],
        num_critics: int,
        critic_input: CriticInput,
        max_actions: int,
        score_weight: float = 0.0,
    ) -> None:
        """`observation_action`: one output on each action's last token. `observation`: `max_actions` outputs on the
        prompt's last position; the last layer's row i is the learned embedding of action index i. With `score_weight`
        each critic adds w_c (l(a) - mean_b l(b)), with l(a) the action's log-probability and w_c learned from this
        initial value, so that the head need not find at the last token what the model knew at earlier ones."""
        super().__init__()
        weights_C = torch.full((num_critics,), score_weight)
        self.score_weights = nn.Parameter(weights_C) if score_weight else None
        self._on_actions = critic_input == "observation_action"
        self._max_actions = max_actions
        outputs = 1 if self._on_actions else max_actions
        self.critics = nn.ModuleList(mlp(hidden_size, hidden, outputs) for _ in range(num_critics))

    def forward(self, output: LMOutput) -> Tensor:
        """Q values (C, B, A), float32; 0 on padding.

        Raises:
            ModelError: with `observation` input, a state with more actions than the head has outputs.
        """
        mask_BA = output.actions_BA
        if self._on_actions:
            hidden_BAH = output.action_hidden_BAH.float()
            q_CBA = torch.stack([critic(hidden_BAH).squeeze(-1) for critic in self.critics])
        else:
            actions = mask_BA.shape[1]
            if actions > self._max_actions:
                raise ModelError(
                    f"critic.input 'observation' has {self._max_actions} outputs, got a state with {actions} actions; "
                    "raise critic.max_actions, or use critic.input=observation_action, which has no such limit"
                )
            hidden_BH = output.prompt_hidden_BH.float()
            q_CBA = torch.stack([critic(hidden_BH)[:, :actions] for critic in self.critics])
        if self.score_weights is not None:
            q_CBA = q_CBA + self.score_weights[:, None, None] * _centred(output.log_probs_BA, mask_BA)
        return q_CBA.masked_fill(~mask_BA, 0.0)


def _centred(score_BA: Tensor, mask_BA: Tensor) -> Tensor:
    """Scores less their mean over a state's actions; what the actions have in common is left to the MLP."""
    mean_B = score_BA.masked_fill(~mask_BA, 0.0).sum(dim=-1) / mask_BA.sum(dim=-1)
    return score_BA - mean_B[:, None]
