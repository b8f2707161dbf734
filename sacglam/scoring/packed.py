"""Scoring by the packed forward pass, with the learner's own weights."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sacglam.errors import DivergenceError
from sacglam.models.heads import PolicyHead
from sacglam.models.packed_lm import ACTOR, PackedLM
from sacglam.models.tokens import QueryTokenizer
from sacglam.types import LogPolicy, Query


@dataclass(eq=False)
class PackedScorer:
    """Scores with the learner's own weights, which need no publishing; at most `batch_size` states in one pass."""

    lm: PackedLM
    tokenizer: QueryTokenizer
    policy: PolicyHead
    batch_size: int = 256
    version = 0
    """Meaningless here: the weights are always the current ones."""

    @torch.no_grad()
    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        """log pi over each query's actions, float32.

        Raises:
            DivergenceError: the weights produce NaN.
        """
        found: list[LogPolicy] = []
        for start in range(0, len(queries), self.batch_size):
            tokenised = self.tokenizer(queries[start : start + self.batch_size])
            log_pi_BA = self.policy(self.lm.forward(self.lm.pack(tokenised), ACTOR)).float().cpu().numpy()
            if np.isnan(log_pi_BA).any():
                raise DivergenceError(
                    "the policy is NaN: the weights have diverged; start a new run with smaller learning rates"
                )
            found += [row[: len(q.actions)] for row, q in zip(log_pi_BA, tokenised, strict=True)]
        return found
