"""The log-probabilities of actions, requested from vLLM.

The actions of a state are a trie of tokens after its prompt. Each inner node is one request, for the scores of its
children as the next token. vLLM computes a request's last row whatever its cache holds, so a state's requests share its
prompt. Of its prompt log-probabilities, cached rows have none, and by default every action computes its prompt again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any

from sacglam.errors import EngineError
from sacglam.models.tokens import TokenisedQuery

ATTEMPTS = 4
UNCACHED_FROM = 2
"""The third attempt and the fourth do not read the cache, in case its content is at fault."""
MAX_LOG_PROB = 1e-3
"""A larger number is no log-probability but uninitialised memory; rounding errors are far smaller."""
MAX_TOKEN_IDS = 128
"""The most token ids whose scores vLLM returns for one request."""

Tokens = tuple[int, ...]
"""Tokens from a prompt's first on; their score is that of the last one after the others."""
Output = Any
"""A finished `vllm.RequestOutput` with flat log-probabilities (`vllm.logprobs.FlatLogprobs`)."""
Send = Callable[[Sequence[Tokens], Sequence[Mapping[str, Any]]], Sequence[Output]]
"""Runs requests, given their tokens and vLLM sampling parameters; the outputs are in the same order."""
_PARAMETERS = {"max_tokens": 1, "temperature": 0.0, "detokenize": False, "flat_logprobs": True}


@dataclass
class Counts:
    """Totals of what an engine was sent and computed."""

    requests: int = 0
    tokens_computed: int = 0
    """Those sent that were not in the engine's cache."""
    missing: int = 0
    """Action tokens that had no valid score and were requested again."""


@dataclass
class RequestScorer:
    """Sends requests until every action has a valid score, and counts what they cost."""

    send: Send
    counts: Counts = field(default_factory=Counts)

    def log_probs(self, queries: Sequence[TokenisedQuery]) -> list[list[float]]:
        """The log-probability of each query's actions (paper, Eq. 1), nats.

        Raises:
            EngineError: a score is still missing or invalid after the last attempt.
        """
        paths = [[_path(query, action.tolist()) for action in query.actions] for query in queries]
        missing = list(dict.fromkeys(tokens for actions in paths for path in actions for tokens in path))
        scores: dict[Tokens, float] = {}
        for attempt in range(ATTEMPTS):
            scores |= self._requested(missing, uncached=attempt >= UNCACHED_FROM)
            missing = [tokens for tokens in missing if tokens not in scores]
            if not missing:
                return [[sum(scores[tokens] for tokens in path) for path in actions] for actions in paths]
            self.counts.missing += len(missing)
        raise EngineError(
            f"expected a log-probability for every action token; {len(missing)} had none, or an invalid one, in each "
            f"of {ATTEMPTS} attempts (the first: token {missing[0][-1]} after {len(missing[0]) - 1} tokens). "
            "Either the policy has diverged (start a new run with smaller learning rates), or this engine is broken "
            "(restart it)"
        )

    def _requested(self, wanted: Sequence[Tokens], uncached: bool) -> dict[Tokens, float]:
        """The valid scores among those of `wanted`; `uncached` requests do not read the cache."""
        children: dict[Tokens, list[int]] = {}
        for tokens in wanted:
            children.setdefault(tokens[:-1], []).append(tokens[-1])
        requests = [
            (node, ids[start : start + MAX_TOKEN_IDS])
            for node, ids in children.items()
            for start in range(0, len(ids), MAX_TOKEN_IDS)
        ]
        common = {**_PARAMETERS, "skip_reading_prefix_cache": uncached}
        parameters = [{**common, "logprob_token_ids": ids} for _, ids in requests]
        outputs = self.send([node for node, _ in requests], parameters)
        scores: dict[Tokens, float] = {}
        for (node, ids), output in zip(requests, outputs, strict=True):
            self.counts.requests += 1
            self.counts.tokens_computed += len(node) - (output.num_cached_tokens or 0)
            rows = output.outputs[0].logprobs if output.outputs else None
            found = dict(zip(rows.token_ids, rows.logprobs, strict=True)) if rows else {}  # and the sampled token
            scores |= {(*node, token): found.get(token, nan) for token in ids}
        return {tokens: score for tokens, score in scores.items() if isfinite(score) and score <= MAX_LOG_PROB}


def _path(query: TokenisedQuery, action: Sequence[int]) -> list[Tokens]:
    """The tokens up to each of the action's."""
    tokens, first = (*query.prompt.tolist(), *action), len(query.prompt) + 1
    return [tokens[:end] for end in range(first, len(tokens) + 1)]
