"""From the log-probabilities of actions to a policy."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sacglam.models.base import LMOutput


@dataclass(frozen=True)
class PolicyHead:
    """pi(a|o,g) = softmax over the candidates of their log-probabilities (paper, Eq. 2)."""

    length_normalised: bool = False
    temperature: float = 1.0

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
