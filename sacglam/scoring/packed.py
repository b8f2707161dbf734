"""The in-process scorer: the packed forward of the very model that learns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from sacglam.errors import DivergenceError
from sacglam.models.base import ACTOR, PackedLM
from sacglam.models.policy_head import PolicyHead
from sacglam.models.tokens import QueryTokenizer
from sacglam.scoring.base import LogPolicy
from sacglam.types import Query


class PackedScorer:
    """Scores with the learner's own weights, so that nothing needs to be published."""

    def __init__(
        self,
        lm: PackedLM,
        tokenizer: QueryTokenizer,
        policy: PolicyHead,
        version: Callable[[], int] = lambda: 0,
        batch_size: int = 256,
    ) -> None:
        """`version` tells the learner's updates so far; at most `batch_size` states go through in one pass."""
        self._lm = lm
        self._tokenizer = tokenizer
        self._policy = policy
        self._version = version
        self._batch_size = batch_size

    @property
    def version(self) -> int:
        """The learner's updates so far."""
        return self._version()

    @torch.no_grad()
    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        """log pi over each query's actions, float32.

        Raises:
            DivergenceError: the weights give no number.
        """
        found: list[LogPolicy] = []
        for start in range(0, len(queries), self._batch_size):
            tokenised = self._tokenizer(queries[start : start + self._batch_size])
            log_pi_BA = self._policy(self._lm.forward(self._lm.pack(tokenised), ACTOR)).float().cpu().numpy()
            if np.isnan(log_pi_BA).any():
                raise DivergenceError(
                    "the policy is not a number: the weights have diverged; train anew with smaller learning rates"
                )
            found += [row[: len(q.actions)] for row, q in zip(log_pi_BA, tokenised, strict=True)]
        return found
