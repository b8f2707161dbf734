"""Three ways to request the log-probabilities of given tokens after a given prompt from vLLM.

vLLM caches the keys and values of blocks of tokens, so the actions of one state share their prompt. Tokens read from
the cache are not computed again, and so have no scores. Each strategy builds requests that use the cache all the same,
and knows which scores of the output are valid.

Row r of a request is the position that predicts token r + 1. After a prompt of P tokens, row P - 1 predicts an action's
first token.

The actions of one state are a trie of tokens, in which those with a common prefix share its scores.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
from typing_extensions import override

MAX_TOKEN_IDS = 128
"""The most token ids whose scores vLLM returns for one request."""

Prefix = tuple[int, ...]
"""The tokens from the trie's root to the end of an edge: `(5, 7, 9)` carries log p(9 | prompt, 5, 7)."""

Output = Any
"""A finished `vllm.RequestOutput` with flat log-probabilities (`vllm.logprobs.FlatLogprobs`)."""


@dataclass(frozen=True, slots=True)
class Request:
    """Tokens to send, the first `prompt_tokens` of them the state's prompt, and the edges to be scored."""

    tokens: Prefix
    prompt_tokens: int
    edges: tuple[Prefix, ...]

    def row(self, edge: Prefix) -> int:
        """The row that predicts the edge's token."""
        return self.prompt_tokens + len(edge) - 2


class Strategy(ABC):
    """How to request the scores of edges. By default, one request for each path through the trie."""

    def requests(self, prompt: Prefix, edges: Collection[Prefix]) -> list[Request]:
        """Requests that score each edge once."""
        return [Request(prompt + path[-1], len(prompt), path) for path in by_path(edges)]

    @abstractmethod
    def parameters(self, request: Request) -> Mapping[str, Any]:
        """vLLM's sampling parameters for the request, by name, besides those common to all strategies."""

    def is_computed(self, request: Request, edge: Prefix, cached: int) -> bool:
        """Whether the edge has a score when the request's first `cached` tokens came from the cache."""
        return request.row(edge) >= cached

    @abstractmethod
    def scores(self, request: Request, output: Output) -> list[float]:
        """The scores of `request.edges` in nats; NaN where the output has no valid one."""


class PromptLogprobs(Strategy):
    """Score all rows of each request.

    Cached rows are uninitialised memory with one model runner and left out with the other. So rows are counted from the
    end, and read only where they are computed and name the expected token.
    """

    @override
    def parameters(self, request: Request) -> Mapping[str, Any]:
        return {"prompt_logprobs": 0}  # the row's own next token, without the most likely ones

    @override
    def scores(self, request: Request, output: Output) -> list[float]:
        rows, cached = output.prompt_logprobs, output.num_cached_tokens or 0
        if rows is None:
            return [nan] * len(request.edges)
        return [
            self._score(request, edge, rows) if self.is_computed(request, edge, cached) else nan
            for edge in request.edges
        ]

    @staticmethod
    def _score(request: Request, edge: Prefix, rows: Any) -> float:
        left_out = len(request.tokens) - len(rows.start_indices)
        position = request.row(edge) + 1 - left_out  # that of the edge's token; the first token has no score
        if position < 1:
            return nan
        start = rows.start_indices[position]
        if start >= len(rows.token_ids) or rows.token_ids[start] != edge[-1]:
            return nan
        return rows.logprobs[start]


class TokenIdLogprobs(Strategy):
    """Score only the rows of the action, which spares the output layer the prompt's.

    Needs vLLM's V2 model runner, and so a GPU. If the cached part reaches beyond the first of these rows, the output
    has no scores at all.
    """

    @override
    def parameters(self, request: Request) -> Mapping[str, Any]:
        start = request.row(request.edges[0])
        # vLLM expects one id for each row from `start` on.
        ids = np.asarray(request.tokens[start + 1 :], dtype=np.int32)[:, None]
        return {"prompt_logprob_token_ids": ids, "prompt_logprob_start": start}

    @override
    def is_computed(self, request: Request, edge: Prefix, cached: int) -> bool:
        return request.row(request.edges[0]) >= cached

    @override
    def scores(self, request: Request, output: Output) -> list[float]:
        scores = output.prompt_token_id_logprobs
        start = request.row(request.edges[0])
        if scores is None or scores.shape != (len(request.tokens) - 1 - start, 1):
            return [nan] * len(request.edges)
        return [float(scores[request.row(edge) - start, 0]) for edge in request.edges]


class NextTokenLogprobs(Strategy):
    """One request for each inner node of the trie: the scores of its children as the next token.

    Takes more requests, but is valid with every runner and any cache, since vLLM always computes a request's last row.
    """

    @override
    def requests(self, prompt: Prefix, edges: Collection[Prefix]) -> list[Request]:
        return [Request(prompt + group[0][:-1], len(prompt), group) for group in by_node(edges, MAX_TOKEN_IDS)]

    @override
    def parameters(self, request: Request) -> Mapping[str, Any]:
        return {"logprob_token_ids": [edge[-1] for edge in request.edges]}

    @override
    def scores(self, request: Request, output: Output) -> list[float]:
        rows = output.outputs[0].logprobs if output.outputs else None
        if rows is None:
            return [nan] * len(request.edges)
        by_token = dict(zip(rows.token_ids, rows.logprobs, strict=True))  # the children and the sampled token
        return [by_token.get(edge[-1], nan) for edge in request.edges]


def edges_of(actions: Iterable[Prefix]) -> list[Prefix]:
    """Every edge once, each action's from the root on."""
    return list(dict.fromkeys(edge for action in actions for edge in _path(action)))


def by_path(edges: Collection[Prefix]) -> list[tuple[Prefix, ...]]:
    """The edges, grouped by the fewest paths from the root that cover them; each edge is in one group."""
    groups: list[tuple[Prefix, ...]] = []
    left = set(edges)
    for leaf in sorted(edges, key=len, reverse=True):
        if leaf in left:
            groups.append(tuple(edge for edge in _path(leaf) if edge in left))
            left.difference_update(groups[-1])
    return groups


def by_node(edges: Iterable[Prefix], limit: int) -> list[tuple[Prefix, ...]]:
    """The edges, grouped by the node that they leave, at most `limit` in a group."""
    siblings: dict[Prefix, list[Prefix]] = {}
    for edge in edges:
        siblings.setdefault(edge[:-1], []).append(edge)
    return [tuple(group[i : i + limit]) for group in siblings.values() for i in range(0, len(group), limit)]


def log_prob(action: Prefix, scores: Mapping[Prefix, float]) -> float:
    """The sum over the action's tokens, nats (paper, Eq. 1)."""
    return sum(scores[edge] for edge in _path(action))


def _path(action: Prefix) -> Iterator[Prefix]:
    return (action[:end] for end in range(1, len(action) + 1))
