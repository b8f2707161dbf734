"""An engine without a model: scores from a formula, a cache of blocks, and outputs like vLLM's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sacglam.scoring.vllm.requests import Tokens

BLOCK = 4


class Sent(NamedTuple):
    """A request as the engine receives it."""

    tokens: Tokens
    parameters: Mapping[str, Any]


@dataclass
class FakeRows:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def add(self, *scores: tuple[int, float]) -> None:
        self.token_ids += [token for token, _ in scores]
        self.logprobs += [score for _, score in scores]


@dataclass
class FakeCompletion:
    logprobs: FakeRows | None = None


@dataclass
class FakeOutput:
    num_cached_tokens: int | None = 0
    outputs: list[FakeCompletion] = field(default_factory=lambda: [FakeCompletion()])


def score(before: Sequence[int], token: int) -> float:
    """A negative number that depends on all tokens."""
    return -1.0 - sum((i + 1) * t for i, t in enumerate([*before, token])) % 97 / 97


def total(prompt: Sequence[int], action: Sequence[int]) -> float:
    return sum(score([*prompt, *action[:i]], token) for i, token in enumerate(action))


@dataclass
class FakeEngine:
    """Returns the scores of given tokens after a request's own, next to those of a sampled one."""

    sent: list[Sent] = field(default_factory=list)
    blocks: set[tuple[int, ...]] = field(default_factory=set)

    def __call__(self, prompts: Sequence[Tokens], parameters: Sequence[Mapping[str, Any]]) -> list[FakeOutput]:
        requests = [Sent(*each) for each in zip(prompts, parameters, strict=True)]
        self.sent += requests
        return [self._output(request) for request in requests]

    def _output(self, request: Sent) -> FakeOutput:
        tokens, parameters = request
        cached = self._cached(tokens)
        self.blocks |= {tokens[:end] for end in range(BLOCK, len(tokens) + 1, BLOCK)}
        rows = FakeRows()
        rows.add((999, -0.1), *((token, score(tokens, token)) for token in parameters["logprob_token_ids"]))
        return FakeOutput(cached, [FakeCompletion(rows)])

    def _cached(self, tokens: tuple[int, ...]) -> int:
        """The longest run of known blocks from the start that leaves at least one token to compute."""
        cached = 0
        while cached + BLOCK < len(tokens) and tokens[: cached + BLOCK] in self.blocks:
            cached += BLOCK
        return cached
