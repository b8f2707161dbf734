"""Asking an engine until every action has its score: what is missing is asked again in another way, and never used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from sacglam.errors import EngineError
from sacglam.models.tokens import TokenisedQuery
from sacglam.scoring.vllm.strategies import Answer, Ask, NextTokenLogprobs, Strategy
from sacglam.scoring.vllm.trie import Prefix, edges, log_prob

TRIES = 4
UNCACHED_FROM = 2
"""The third try and the last do not read the cache: whatever is wrong there, they get round it."""
MOST_LOG_PROB = 1e-3
"""Above it a number is no log-probability but memory that nobody wrote; rounding stays well below."""

Scores = dict[Prefix, float]


@dataclass(frozen=True, slots=True)
class Request:
    """What goes to the engine: token ids, and sampling parameters by their names in vLLM."""

    tokens: Prefix
    parameters: Mapping[str, Any]


Send = Callable[[Sequence[Request]], Sequence[Answer]]
"""Has the engine answer all requests; answers come in order."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What was asked of an engine and what it computed, since it started."""

    states: int = 0
    actions: int = 0
    requests: int = 0
    tokens_asked: int = 0
    """Tokens of all requests."""
    tokens_computed: int = 0
    """Those of them that did not come from the engine's cache."""
    reasked: int = 0
    """Action tokens asked for again because the row that predicts them came from the cache."""
    missing: int = 0
    """Action tokens asked for again because their score was absent or not a number though it should have come."""


@dataclass(frozen=True)
class _State:
    prompt: Prefix
    actions: tuple[Prefix, ...]
    scores: Scores

    @property
    def wanted(self) -> list[Prefix]:
        return [edge for edge in edges(self.actions) if edge not in self.scores]


class Requests:
    """Scores of actions by way of requests, with a count of what they cost."""

    def __init__(self, send: Send, strategy: Strategy, block: int, max_tokens: int) -> None:
        """`strategy` is asked first. The engine's cache holds blocks of `block` tokens.

        A request may have at most `max_tokens` - 1 tokens, since an engine makes one more; prompt + action at most
        `max_tokens`.
        """
        self._send = send
        self._strategy = strategy
        self._nodes = NextTokenLogprobs()
        self._block = block
        self._max_tokens = max_tokens
        self._counts = Counts()

    @property
    def counts(self) -> Counts:
        """Totals so far."""
        return self._counts

    def log_probs(self, queries: Sequence[TokenisedQuery]) -> list[list[float]]:
        """The log-probability of each query's actions (paper, Eq. 1), nats.

        Raises:
            EngineError: after several tries a score is still missing or not a number.
        """
        states = [_State(tuple(q.prompt.tolist()), tuple(tuple(a.tolist()) for a in q.actions), {}) for q in queries]
        self._count(states=len(states), actions=sum(len(s.actions) for s in states))
        for attempt in range(TRIES):
            if not self._ask(states, attempt):
                return [[log_prob(action, state.scores) for action in state.actions] for state in states]
        raise self._without_score(states)

    def _ask(self, states: Sequence[_State], attempt: int) -> int:
        """Ask for all that is wanted; how many edges are wanted still."""
        open_states = [(i, state, wanted) for i, state in enumerate(states) if (wanted := state.wanted)]
        asked: list[tuple[Strategy, Ask]] = []
        for i, state, wanted in open_states:
            by_way = [edge for edge in wanted if attempt == 0 and not self._needs_node(state.prompt, edge)]
            taken = set(by_way)
            by_node = [edge for edge in wanted if edge not in taken]
            asked += [(self._nodes, ask) for ask in self._nodes.asks(i, state.prompt, by_node)]
            asked += [(self._strategy, ask) for ask in self._strategy.asks(i, state.prompt, by_way)]
        requests = [Request(ask.tokens, self._parameters(strategy, ask, attempt)) for strategy, ask in asked]
        answers = self._send(requests)
        return sum(
            self._take(states[ask.state].scores, strategy, ask, answer)
            for (strategy, ask), answer in zip(asked, answers, strict=True)
        )

    @staticmethod
    def _parameters(strategy: Strategy, ask: Ask, attempt: int) -> Mapping[str, Any]:
        return {
            "max_tokens": 1,
            "temperature": 0.0,
            "detokenize": False,  # rows that came from the cache hold ids of no token
            "flat_logprobs": True,
            "skip_reading_prefix_cache": attempt >= UNCACHED_FROM,
            **strategy.parameters(ask),
        }

    def _needs_node(self, prompt: Prefix, edge: Prefix) -> bool:
        """Whether a request for a whole action would not bring this edge.

        Where the prompt fills its last block, the first action's request leaves all of it in the cache, and the rest
        would find their first token's row there.
        """
        return (len(edge) == 1 and len(prompt) % self._block == 0) or len(prompt) + len(edge) >= self._max_tokens

    def _take(self, scores: Scores, strategy: Strategy, ask: Ask, answer: Answer) -> int:
        """Keep what is a score; how many of the edges asked for were none."""
        cached = answer.num_cached_tokens or 0
        found = dict(zip(ask.gives, strategy.read(ask, answer), strict=True))
        good = {edge: score for edge, score in found.items() if isfinite(score) and score <= MOST_LOG_PROB}
        scores.update(good)
        swallowed = sum(not strategy.reaches(ask, edge, cached) for edge in found if edge not in good)
        lost = len(found) - len(good)
        self._count(
            requests=1,
            tokens_asked=len(ask.tokens),
            tokens_computed=len(ask.tokens) - cached,
            reasked=swallowed,
            missing=lost - swallowed,
        )
        return lost

    def _count(self, **more: int) -> None:
        now = asdict(self._counts)
        self._counts = Counts(**{name: value + more.get(name, 0) for name, value in now.items()})

    @staticmethod
    def _without_score(states: Sequence[_State]) -> EngineError:
        wanted = [(state, edge) for state in states for edge in state.wanted]
        state, edge = wanted[0]
        return EngineError(
            f"expected a log-probability for every action token; {len(wanted)} came without one, or as no number, in "
            f"each of {TRIES} tries (the first: token {edge[-1]} after {len(state.prompt) + len(edge) - 1} tokens). "
            "Either the policy has diverged (train anew with smaller learning rates), or this engine is broken "
            "(restart it)"
        )
