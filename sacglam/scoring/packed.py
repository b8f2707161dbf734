"""Scoring by the packed forward: with the very weights that learn, or apart from them with an adapter of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from safetensors.torch import load as parse_tensors

from sacglam.errors import DivergenceError, EngineError
from sacglam.models.base import ACTOR, PackedLM
from sacglam.models.policy_head import PolicyHead
from sacglam.models.tokens import QueryTokenizer
from sacglam.scoring.base import LogPolicy
from sacglam.types import Adapter, Query

ADAPTER_FILE = "adapter_model.safetensors"  # peft's name for it


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


class PackedEngine:
    """A packed scorer with weights of its own, for rollout devices whose model vLLM does not serve, or is not there."""

    def __init__(self, lm: PackedLM, tokenizer: QueryTokenizer, policy: PolicyHead) -> None:
        """Scores with `lm`'s own first adapter, version 0, until it is given one."""
        self.version = 0
        self._lm = lm
        self._scorer = PackedScorer(lm, tokenizer, policy)

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        """As `PackedScorer.log_policy`."""
        return self._scorer.log_policy(queries)

    @torch.no_grad()
    def load(self, adapter: Adapter) -> None:
        """Take over the adapter's weights, in place.

        Raises:
            EngineError: it is of another model or rank.
        """
        given = parse_tensors(adapter.files[ADAPTER_FILE])
        own = self._lm.adapter_parameters(ACTOR)
        if {name: t.shape for name, t in given.items()} != {name: p.shape for name, p in own.items()}:
            raise EngineError(
                f"expected an adapter with {len(own)} tensors like {min(own)}, got {len(given)} like "
                f"{min(given, default='none')}: learner and engine have different models or LoRA settings"
            )
        for name, parameter in own.items():
            parameter.copy_(given[name])
        self.version = adapter.version
