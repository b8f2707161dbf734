"""Sends requests to an engine until every action has a valid score."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from sacglam.errors import EngineError
from sacglam.models.tokens import TokenisedQuery
from sacglam.scoring.vllm.strategies import NextTokenLogprobs, Output, Prefix, Request, Strategy, edges_of, log_prob

ATTEMPTS = 4
UNCACHED_FROM = 2
"""The third attempt and the fourth do not read the cache, in case its content is at fault."""
_FALLBACK = NextTokenLogprobs()
MAX_LOG_PROB = 1e-3
"""A larger number is no log-probability but uninitialised memory; rounding errors are far smaller."""

Send = Callable[[Sequence[Prefix], Sequence[Mapping[str, Any]]], Sequence[Output]]
"""Runs requests, given their tokens and vLLM sampling parameters; the outputs are in the same order."""


@dataclass
class Counts:
    """Totals of what an engine was sent and computed."""

    states: int = 0
    actions: int = 0
    requests: int = 0
    tokens_sent: int = 0
    tokens_computed: int = 0
    """Those of `tokens_sent` that were not in the engine's cache."""
    retried: int = 0
    """Action tokens requested again because the row that predicts them was in the cache."""
    missing: int = 0
    """Action tokens requested again because their row was computed, but had no valid score."""


@dataclass
class _State:
    prompt: Prefix
    actions: list[Prefix]
    missing: list[Prefix]
    """Edges without a score."""
    scores: dict[Prefix, float] = field(default_factory=dict)


@dataclass
class RequestScorer:
    """The log-probabilities of actions, from requests to an engine; counts what they cost.

    `strategy` is used first, `NextTokenLogprobs` where it cannot work or has failed. The engine's cache has blocks of
    `block_size` tokens. Prompt + action take at most `max_tokens`, a request one less, since the engine generates one.
    """

    send: Send
    strategy: Strategy
    block_size: int
    max_tokens: int
    counts: Counts = field(default_factory=Counts)

    def log_probs(self, queries: Sequence[TokenisedQuery]) -> list[list[float]]:
        """The log-probability of each query's actions (paper, Eq. 1), nats.

        Raises:
            EngineError: a score is still missing or invalid after the last attempt.
        """
        states = []
        for query in queries:
            actions = [tuple(action.tolist()) for action in query.actions]
            states.append(_State(tuple(query.prompt.tolist()), actions, edges_of(actions)))
        self.counts.states += len(states)
        self.counts.actions += sum(len(state.actions) for state in states)
        for attempt in range(ATTEMPTS):
            self._fill([state for state in states if state.missing], attempt)
            if not any(state.missing for state in states):
                return [[log_prob(action, state.scores) for action in state.actions] for state in states]
        missing = [(state, edge) for state in states for edge in state.missing]
        state, edge = missing[0]
        raise EngineError(
            f"expected a log-probability for every action token; {len(missing)} had none, or an invalid one, in each "
            f"of {ATTEMPTS} attempts (the first: token {edge[-1]} after {len(state.prompt) + len(edge) - 1} tokens). "
            "Either the policy has diverged (start a new run with smaller learning rates), or this engine is broken "
            "(restart it)"
        )

    def _fill(self, states: Sequence[_State], attempt: int) -> None:
        """Request all missing scores and keep those that are valid."""
        batch = [item for state in states for item in self._requests(state, attempt)]
        outputs = self.send(
            [request.tokens for _, _, request in batch],
            [_parameters(strategy, request, attempt) for _, strategy, request in batch],
        )
        for (state, strategy, request), output in zip(batch, outputs, strict=True):
            self._read(state, strategy, request, output)
        for state in states:
            state.missing = [edge for edge in state.missing if edge not in state.scores]

    def _requests(self, state: _State, attempt: int) -> Iterator[tuple[_State, Strategy, Request]]:
        edges: dict[Strategy, list[Prefix]] = {_FALLBACK: [], self.strategy: []}
        for edge in state.missing:
            use_fallback = attempt > 0 or self._needs_fallback(state.prompt, edge)
            edges[_FALLBACK if use_fallback else self.strategy].append(edge)
        for strategy, chosen in edges.items():
            for request in strategy.requests(state.prompt, chosen):
                yield state, strategy, request

    def _needs_fallback(self, prompt: Prefix, edge: Prefix) -> bool:
        """Whether a request for a whole action would not score this edge.

        Either it would be too long, or the prompt fills its last block: the first action's request then leaves the
        whole prompt in the cache, and with it the row that predicts the first token of every other action.
        """
        return (len(edge) == 1 and len(prompt) % self.block_size == 0) or len(prompt) + len(edge) >= self.max_tokens

    def _read(self, state: _State, strategy: Strategy, request: Request, output: Output) -> None:
        cached = output.num_cached_tokens or 0
        self.counts.requests += 1
        self.counts.tokens_sent += len(request.tokens)
        self.counts.tokens_computed += len(request.tokens) - cached
        for edge, score in zip(request.edges, strategy.scores(request, output), strict=True):
            if isfinite(score) and score <= MAX_LOG_PROB:
                state.scores[edge] = score
            elif strategy.is_computed(request, edge, cached):
                self.counts.missing += 1
            else:
                self.counts.retried += 1


def _parameters(strategy: Strategy, request: Request, attempt: int) -> Mapping[str, Any]:
    return {
        "max_tokens": 1,
        "temperature": 0.0,
        "detokenize": False,  # the token ids of cached rows are invalid
        "flat_logprobs": True,
        "skip_reading_prefix_cache": attempt >= UNCACHED_FROM,
        **strategy.parameters(request),
    }
