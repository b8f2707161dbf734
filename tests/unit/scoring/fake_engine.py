"""An engine without a model: scores from a formula, a cache of blocks, and outputs like vLLM's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sacglam.scoring.vllm.strategies import Prefix

BLOCK = 4
GARBAGE = -0.5
"""The content of uninitialised rows: it looks like a score."""


class Sent(NamedTuple):
    """A request as the engine receives it."""

    tokens: Prefix
    parameters: Mapping[str, Any]


@dataclass
class FakeRows:
    start_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def add(self, *scores: tuple[int, float]) -> None:
        self.start_indices.append(len(self.token_ids))
        self.token_ids += [token for token, _ in scores]
        self.logprobs += [score for _, score in scores]


@dataclass
class FakeCompletion:
    logprobs: FakeRows | None = None


@dataclass
class FakeOutput:
    num_cached_tokens: int | None = 0
    prompt_logprobs: FakeRows | None = None
    prompt_token_id_logprobs: npt.NDArray[np.float32] | None = None
    outputs: list[FakeCompletion] = field(default_factory=lambda: [FakeCompletion()])


def score(before: Sequence[int], token: int) -> float:
    """A negative number that depends on all tokens."""
    return -1.0 - sum((i + 1) * t for i, t in enumerate([*before, token])) % 97 / 97


def total(prompt: Sequence[int], action: Sequence[int]) -> float:
    return sum(score([*prompt, *action[:i]], token) for i, token in enumerate(action))


@dataclass
class FakeEngine:
    """With `shortened`, rows of cached tokens are left out, as by vLLM's V2 runner; else they are garbage, as by V1."""

    shortened: bool = False
    sent: list[Sent] = field(default_factory=list)
    blocks: set[tuple[int, ...]] = field(default_factory=set)

    def __call__(self, prompts: Sequence[Prefix], parameters: Sequence[Mapping[str, Any]]) -> list[FakeOutput]:
        requests = [Sent(*each) for each in zip(prompts, parameters, strict=True)]
        self.sent += requests
        return [self._output(request) for request in requests]

    def _output(self, request: Sent) -> FakeOutput:
        tokens, parameters = request
        cached = 0 if parameters["skip_reading_prefix_cache"] else self._cached(tokens)
        self.blocks |= {tokens[:end] for end in range(BLOCK, len(tokens) + 1, BLOCK)}
        found = FakeOutput(cached)
        if "prompt_logprobs" in parameters:
            found.prompt_logprobs = self._rows(tokens, cached)
        if "prompt_logprob_token_ids" in parameters:
            found.prompt_token_id_logprobs = self._token_rows(tokens, cached, parameters["prompt_logprob_start"])
        if "logprob_token_ids" in parameters:
            rows = FakeRows()
            rows.add((999, -0.1), *((token, score(tokens, token)) for token in parameters["logprob_token_ids"]))
            found.outputs = [FakeCompletion(rows)]
        return found

    def _cached(self, tokens: tuple[int, ...]) -> int:
        """The longest run of known blocks from the start that leaves at least one token to compute."""
        cached = 0
        while cached + BLOCK < len(tokens) and tokens[: cached + BLOCK] in self.blocks:
            cached += BLOCK
        return cached

    def _rows(self, tokens: tuple[int, ...], cached: int) -> FakeRows:
        rows = FakeRows()
        rows.add()
        for row in range(len(tokens) - 1):
            if row >= cached:
                rows.add((tokens[row + 1], score(tokens[: row + 1], tokens[row + 1])))
            elif not self.shortened:
                rows.add((tokens[row + 1], GARBAGE))
        return rows

    def _token_rows(self, tokens: tuple[int, ...], cached: int, start: int) -> npt.NDArray[np.float32] | None:
        if cached > start:
            return None
        values = [[score(tokens[: row + 1], tokens[row + 1])] for row in range(start, len(tokens) - 1)]
        return np.array(values, dtype=np.float32)
