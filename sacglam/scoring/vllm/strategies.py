"""Three ways of asking an engine for the log-probabilities of given tokens after a given prompt.

An engine keeps the keys and values of computed blocks of tokens, so that the actions of one state share their
prompt. Whatever lies in that cache is not computed again, and then its rows have no score. Each strategy knows how to
ask so that the cache is used all the same, and what of an answer is a score and what is not.

Row r of a request is the position whose output predicts token r + 1. With a prompt of P tokens the first token of an
action is predicted by row P - 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sacglam.scoring.vllm.trie import Prefix, leaves, nodes

MOST_TOKEN_IDS = 128
"""The most tokens whose scores one request may ask for by id."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: `tokens` to compute, the first `prompt` of them the state's prompt; and the edges it `gives`."""

    state: int
    tokens: Prefix
    prompt: int
    gives: tuple[Prefix, ...]

    def row(self, edge: Prefix) -> int:
        """The row that predicts the edge's token."""
        return self.prompt + len(edge) - 2


class Rows(Protocol):
    """Scores of consecutive positions, flattened: those of position i begin at `start_indices[i]`."""

    start_indices: list[int]
    token_ids: list[int]
    logprobs: list[float]


class Completion(Protocol):
    """The one token that an engine makes after the request's own."""

    logprobs: Rows | None


class Answer(Protocol):
    """What is read of a finished request; these are the names that vLLM gives them."""

    num_cached_tokens: int | None
    prompt_logprobs: Rows | None
    prompt_token_id_logprobs: npt.NDArray[np.float32] | None
    outputs: Sequence[Completion]


class Strategy(Protocol):
    """How to ask for the scores of edges."""

    def asks(self, state: int, prompt: Prefix, wanted: Iterable[Prefix]) -> list[Ask]:
        """Requests that give every wanted edge once."""

    def parameters(self, ask: Ask) -> Mapping[str, Any]:
        """The request's sampling parameters, by their names in vLLM, beside those that all strategies share."""

    def reaches(self, ask: Ask, edge: Prefix, cached: int) -> bool:
        """Whether an answer whose first `cached` tokens came from the cache has the edge's score."""

    def read(self, ask: Ask, answer: Answer) -> list[float]:
        """The scores of `ask.gives` in nats; NaN where the answer has none that can be trusted."""


class PromptLogprobs:
    """One request for each action, with the scores of all its rows.

    Rows that came from the cache are uninitialised memory on one runner and left out on another, so rows are counted
    from the end, and taken only past the cached part and where they name the token asked for.
    """

    def asks(self, state: int, prompt: Prefix, wanted: Iterable[Prefix]) -> list[Ask]:
        """One request for each path of the trie; edges that paths share are read of one of them."""
        return [Ask(state, prompt + leaf, len(prompt), tuple(gives)) for leaf, gives in leaves(wanted).items()]

    def parameters(self, ask: Ask) -> Mapping[str, Any]:
        """The score of each row's own next token, and none beside it."""
        return {"prompt_logprobs": 0}

    def reaches(self, ask: Ask, edge: Prefix, cached: int) -> bool:
        """Where the edge's own row was computed."""
        return ask.row(edge) >= cached

    def read(self, ask: Ask, answer: Answer) -> list[float]:
        """See `Strategy`."""
        rows = answer.prompt_logprobs
        if rows is None:
            return [nan] * len(ask.gives)
        cached = answer.num_cached_tokens or 0
        return [self._read(ask, edge, rows) if self.reaches(ask, edge, cached) else nan for edge in ask.gives]

    @staticmethod
    def _read(ask: Ask, edge: Prefix, rows: Rows) -> float:
        last = len(ask.tokens) - 2
        position = len(rows.start_indices) - 1 - (last - ask.row(edge))
        if position < 1:  # position 0 stands for the first token, which nothing predicts
            return nan
        place = rows.start_indices[position]
        if place >= len(rows.token_ids) or rows.token_ids[place] != edge[-1]:
            return nan
        return rows.logprobs[place]


class TokenIdLogprobs:
    """One request for each action, with the scores of the action's rows alone: less work in the output layer.

    Only vLLM's second model runner has it, and that one needs a GPU. Where the cached part runs past the first row
    asked for, the answer has no scores at all.
    """

    def asks(self, state: int, prompt: Prefix, wanted: Iterable[Prefix]) -> list[Ask]:
        """As `PromptLogprobs`."""
        return PromptLogprobs().asks(state, prompt, wanted)

    def parameters(self, ask: Ask) -> Mapping[str, Any]:
        """One token id for each row from the first that counts; the engine wants exactly as many as there are rows."""
        start = ask.row(ask.gives[0])
        ids = np.asarray(ask.tokens[start + 1 :], dtype=np.int32)[:, None]
        return {"prompt_logprob_token_ids": ids, "prompt_logprob_start": start}

    def reaches(self, ask: Ask, edge: Prefix, cached: int) -> bool:
        """Where the first row asked for was computed: the engine gives all of them or none."""
        return ask.row(ask.gives[0]) >= cached

    def read(self, ask: Ask, answer: Answer) -> list[float]:
        """See `Strategy`."""
        scores = answer.prompt_token_id_logprobs
        start = ask.row(ask.gives[0])
        if scores is None or scores.shape != (len(ask.tokens) - 1 - start, 1):
            return [nan] * len(ask.gives)
        return [float(scores[ask.row(edge) - start, 0]) for edge in ask.gives]


class NextTokenLogprobs:
    """One request for each inner node of the actions' trie: the scores of its children as the next token.

    Right on every runner and whatever is cached, since the last row is always computed; but more requests.
    """

    def asks(self, state: int, prompt: Prefix, wanted: Iterable[Prefix]) -> list[Ask]:
        """One request for each node, more where it has above 128 children."""
        return [Ask(state, prompt + group[0][:-1], len(prompt), group) for group in nodes(wanted, MOST_TOKEN_IDS)]

    def parameters(self, ask: Ask) -> Mapping[str, Any]:
        """The children's token ids."""
        return {"logprob_token_ids": [edge[-1] for edge in ask.gives]}

    def reaches(self, ask: Ask, edge: Prefix, cached: int) -> bool:
        """Always: an engine never takes a whole request from its cache."""
        return True

    def read(self, ask: Ask, answer: Answer) -> list[float]:
        """See `Strategy`. The token that the engine itself chose stands among the children's."""
        rows = answer.outputs[0].logprobs if answer.outputs else None
        if rows is None:
            return [nan] * len(ask.gives)
        found = dict(zip(rows.token_ids, rows.logprobs, strict=True))
        return [found.get(edge[-1], nan) for edge in ask.gives]
