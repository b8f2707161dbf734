"""An engine without a model: scores from a formula, a cache of blocks, and the answers that vLLM would give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sacglam.scoring.vllm.requests import Request

BLOCK = 4
GARBAGE = -0.5
"""What a row of uninitialised memory holds here: nothing about it looks wrong."""


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
class FakeAnswer:
    num_cached_tokens: int | None = 0
    prompt_logprobs: FakeRows | None = None
    prompt_token_id_logprobs: npt.NDArray[np.float32] | None = None
    outputs: list[FakeCompletion] = field(default_factory=lambda: [FakeCompletion()])


def score(before: Sequence[int], token: int) -> float:
    """Any number below zero that depends on all tokens."""
    return -1.0 - sum((i + 1) * t for i, t in enumerate([*before, token])) % 97 / 97


def total(prompt: Sequence[int], action: Sequence[int]) -> float:
    return sum(score([*prompt, *action[:i]], token) for i, token in enumerate(action))


@dataclass
class FakeEngine:
    """`shortened` leaves the rows of cached tokens out, as vLLM's second runner does; the first leaves garbage."""

    shortened: bool = False
    sent: list[Request] = field(default_factory=list)
    blocks: set[tuple[int, ...]] = field(default_factory=set)

    def __call__(self, requests: Sequence[Request]) -> list[FakeAnswer]:
        self.sent += requests
        return [self.answer(request) for request in requests]

    def answer(self, request: Request) -> FakeAnswer:
        tokens, parameters = request.tokens, request.parameters
        cached = 0 if parameters["skip_reading_prefix_cache"] else self._cached(tokens)
        self.blocks |= {tokens[:end] for end in range(BLOCK, len(tokens) + 1, BLOCK)}
        found = FakeAnswer(cached)
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
