"""Scoring by the packed forward pass, with the learner's own weights or with a copy that loads adapters."""

from collections.abc import Sequence

import numpy as np
import torch
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import load
from typing_extensions import override

from sacglam.errors import DivergenceError, EngineError
from sacglam.models.heads import PolicyHead
from sacglam.models.packed_lm import ACTOR, PackedLM
from sacglam.models.tokens import QueryTokenizer
from sacglam.scoring.base import Engine
from sacglam.types import Adapter, LogPolicy, Query


class PackedScorer:
    """Scores with the learner's own weights, which need no publishing."""

    version = 0
    """Of no meaning here: the weights are those of the moment."""

    def __init__(self, lm: PackedLM, tokenizer: QueryTokenizer, policy: PolicyHead, batch_size: int = 256) -> None:
        """One forward pass takes at most `batch_size` states."""
        self._lm = lm
        self._tokenizer = tokenizer
        self._policy = policy
        self._batch_size = batch_size

    @torch.no_grad()
    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        """log pi over each query's actions, float32.

        Raises:
            DivergenceError: the weights produce NaN.
        """
        found: list[LogPolicy] = []
        for start in range(0, len(queries), self._batch_size):
            tokenised = self._tokenizer(queries[start : start + self._batch_size])
            log_pi_BA = self._policy(self._lm.forward(self._lm.pack(tokenised), ACTOR)).float().cpu().numpy()
            if np.isnan(log_pi_BA).any():
                raise DivergenceError(
                    "the policy is NaN: the weights have diverged; start a new run with smaller learning rates"
                )
            found += [row[: len(q.actions)] for row, q in zip(log_pi_BA, tokenised, strict=True)]
        return found


class PackedEngine(Engine):
    """The packed scorer as an engine, where vLLM is not installed or does not serve the model."""

    def __init__(self, lm: PackedLM, tokenizer: QueryTokenizer, policy: PolicyHead) -> None:
        """Scores with `lm`'s own first adapter, version 0, until another is loaded."""
        self._lm = lm
        self._scorer = PackedScorer(lm, tokenizer, policy)

    @override
    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        return self._scorer.log_policy(queries)

    @override
    @torch.no_grad()
    def load(self, adapter: Adapter) -> None:
        """Copy the adapter's weights into the model's.

        Raises:
            EngineError: it belongs to another model or has another rank.
        """
        given = load(adapter.files[SAFETENSORS_WEIGHTS_NAME])
        own = self._lm.adapter_parameters(ACTOR)
        if {name: t.shape for name, t in given.items()} != {name: p.shape for name, p in own.items()}:
            raise EngineError(
                f"expected an adapter with {len(own)} tensors like {min(own)}, got {len(given)} like "
                f"{min(given, default='none')}: learner and engine have different models or LoRA settings"
            )
        for name, parameter in own.items():
            parameter.copy_(given[name])
        self.version = adapter.version
