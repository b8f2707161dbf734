"""Counting what goes through the language model, phase by phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sacglam.models.base import ACTOR, LMOutput, PackedLM
from sacglam.models.tokens import TokenisedQuery
from sacglam.tools.profile.recorder import Recorder


@dataclass(frozen=True)
class Pass:
    """One forward pass; `gradient`: with a backward pass after it. `computed` is its positions, padding included."""

    phase: str
    gradient: bool
    queries: Sequence[TokenisedQuery]
    computed: int


@dataclass(frozen=True)
class _Batch:
    """A packed batch and what it was packed from."""

    packed: Any
    queries: Sequence[TokenisedQuery]

    @property
    def tokens(self) -> int:
        return int(self.packed.tokens)


class Tally:
    """The list of passes. Sums are made when the clock stands."""

    def __init__(self, recorder: Recorder) -> None:
        """`recorder` knows the phase of each pass."""
        self.passes: list[Pass] = []
        self.lm: PackedLM | None = None
        self._recorder = recorder

    def observe(self, lm: PackedLM) -> PackedLM:
        """Count what goes through `lm`: see `sacglam.build.build_brain`."""
        self.lm = lm
        return CountingLM(lm, self)

    def add(self, batch: _Batch) -> None:
        """One more pass."""
        self.passes.append(Pass(self._recorder.phase, torch.is_grad_enabled(), batch.queries, batch.tokens))


class CountingLM:
    """A `PackedLM` before another."""

    def __init__(self, lm: PackedLM, tally: Tally) -> None:
        """`tally` is told of each pass."""
        self._lm = lm
        self._tally = tally

    @property
    def hidden_size(self) -> int:
        """As the other's."""
        return self._lm.hidden_size

    @property
    def module(self) -> nn.Module:
        """As the other's."""
        return self._lm.module

    def pack(self, queries: Sequence[TokenisedQuery]) -> _Batch:
        """As the other's."""
        return _Batch(self._lm.pack(queries), queries)

    def forward(self, packed: _Batch, adapter: str = ACTOR) -> LMOutput:
        """As the other's, and one more in the list."""
        self._tally.add(packed)
        return self._lm.forward(packed.packed, adapter)

    def adapter_parameters(self, adapter: str) -> dict[str, nn.Parameter]:
        """As the other's."""
        return self._lm.adapter_parameters(adapter)

    def adapter_files(self, adapter: str = ACTOR) -> dict[str, bytes]:
        """As the other's."""
        return self._lm.adapter_files(adapter)
