"""From the log-probabilities of actions to a policy."""

from __future__ import annotations

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
        """log pi (B, A), float32; -inf on padding."""
        score_BA = output.log_probs_BA
        if self.length_normalised:
            score_BA = score_BA / output.lengths_BA
        score_BA = (score_BA / self.temperature).masked_fill(~output.actions_BA, -torch.inf)
        return torch.log_softmax(score_BA, dim=-1)
