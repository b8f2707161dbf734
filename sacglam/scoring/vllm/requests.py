"""The log-probabilities of actions, requested from vLLM.

The actions of a state are a trie of tokens after its prompt. Each inner node is one request, for the scores of its
children as the next token. vLLM computes a request's last row whatever its cache holds, so a state's requests share its
prompt. With prompt log-probabilities, which cached rows do not have, every action would compute its prompt again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite, nan
from typing import Any

from sacglam.errors import EngineError
from sacglam.models.tokens import TokenisedQuery

MAX_LOG_PROB = 1e-3
"""A larger number is not a log-probability; rounding errors are far smaller."""
MAX_TOKEN_IDS = 128
"""The most token ids whose scores vLLM returns for one request."""

Tokens = tuple[int, ...]
"""Tokens from the first of a prompt on; their score is that of the last one, given the others."""
Output = Any
"""A finished `vllm.RequestOutput` with flat log-probabilities (`vllm.logprobs.FlatLogprobs`)."""
Send = Callable[[Sequence[Tokens], Sequence[Mapping[str, Any]]], Sequence[Output]]
"""Runs requests, given their tokens and vLLM sampling parameters; the outputs are in the same order."""
_PARAMETERS = {"max_tokens": 1, "temperature": 0.0, "detokenize": False, "flat_logprobs": True}


def log_probs(send: Send, queries: Sequence[TokenisedQuery]) -> list[list[float]]:
    """The log-probability of each query's actions (paper, Eq. 1), nats.

    Raises:
        EngineError: a score is missing or invalid.
    """
    paths = [[_path(query, action.tolist()) for action in query.actions] for query in queries]
    scores = _requested(send, dict.fromkeys(tokens for actions in paths for path in actions for tokens in path))
    if wrong := [tokens for tokens, score in scores.items() if not (isfinite(score) and score <= MAX_LOG_PROB)]:
        raise EngineError(
            f"expected a log-probability for every action token; {len(wrong)} had none, or an invalid one (the first: "
            f"token {wrong[0][-1]} after {len(wrong[0]) - 1} tokens). Either the policy has diverged (start a new run "
            "with smaller learning rates), or this engine is broken (continue with --resume)"
        )
    return [[sum(scores[tokens] for tokens in path) for path in actions] for actions in paths]


def _requested(send: Send, wanted: Iterable[Tokens]) -> dict[Tokens, float]:
    """The scores of `wanted`; NaN where there is none."""
    children: dict[Tokens, list[int]] = {}
    for tokens in wanted:
        children.setdefault(tokens[:-1], []).append(tokens[-1])
    requests = [
        (node, ids[start : start + MAX_TOKEN_IDS])
        for node, ids in children.items()
        for start in range(0, len(ids), MAX_TOKEN_IDS)
    ]
    outputs = send([node for node, _ in requests], [{**_PARAMETERS, "logprob_token_ids": ids} for _, ids in requests])
    scores: dict[Tokens, float] = {}
    for (node, ids), output in zip(requests, outputs, strict=True):
        rows = output.outputs[0].logprobs if output.outputs else None
        found = dict(zip(rows.token_ids, rows.logprobs, strict=True)) if rows else {}  # also has the sampled token
        scores |= {(*node, token): found.get(token, nan) for token in ids}
    return scores


def _path(query: TokenisedQuery, action: Sequence[int]) -> list[Tokens]:
    """For each of the action's tokens, the tokens up to and including it."""
    tokens, first = (*query.prompt.tolist(), *action), len(query.prompt) + 1
    return [tokens[:end] for end in range(first, len(tokens) + 1)]
