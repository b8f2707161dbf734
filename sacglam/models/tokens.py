"""Text to token ids: prompt and actions are tokenised separately and joined as ids.

This is the only place where they become tokens, for the learner, all engines and agents.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from sacglam.errors import ModelError
from sacglam.prompt import Prompt, query
from sacglam.types import Observation, Query

Ids = npt.NDArray[np.int64]

_CACHED_TEXTS = 200_000
_EXAMPLE = Observation("You see: red cat", ("Go to red cat", "Grasp", "Open door 2"))


@dataclass(frozen=True, slots=True, eq=False)
class TokenisedQuery:
    """A query as token ids: `prompt` (P,) and one array (L_a,) for each action. Equal queries are one object."""

    prompt: Ids
    actions: tuple[Ids, ...]


class QueryTokenizer:
    """Tokenises queries, caching ids by text, and refuses what cannot be scored."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_tokens: int,
        score_eos: bool = False,
        prompt_eos: bool = False,
        prompt: Prompt = query,
    ) -> None:
        """`max_tokens` limits prompt + action. `score_eos` ends each action with an end-of-sequence token, `prompt_eos`
        each prompt. Queries come from `prompt`.

        Raises:
            ModelError: the tokenizer lacks such a token or a chat template, or merges tokens across the boundary of
                prompt and action.
        """
        if tokenizer.eos_token_id is None and prompt_eos:
            raise ModelError("an encoder's prompt ends in an end-of-sequence token, and this tokenizer has none")
        if tokenizer.eos_token_id is None and score_eos:
            raise ModelError("policy.score_eos needs an end-of-sequence token; set it to false for this tokenizer")
        self.prompt = prompt
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._action_end = [tokenizer.eos_token_id] if score_eos else []
        self._prompt_end = [tokenizer.eos_token_id] if prompt_eos else []
        example = prompt.in_chat(prompt("Grasp red cat", _EXAMPLE), tokenizer)
        self._dropped = _dropped_prefix(tokenizer, example)
        self._cache: dict[str, Ids] = {}

    def __call__(self, queries: Sequence[Query]) -> list[TokenisedQuery]:
        """Token ids of each query; equal queries give one object.

        Raises:
            ModelError: a text has no tokens, or prompt + action is longer than the model allows.
        """
        as_read = {query: self._as_read(query) for query in queries}
        self._fill_cache(as_read.values())
        tokenised = {query: self._tokenise(texts) for query, texts in as_read.items()}
        return [tokenised[query] for query in queries]

    def _as_read(self, query: Query) -> Query:
        """The texts that the model reads."""
        if self._dropped:
            query = Query(query.prompt, tuple(action.removeprefix(self._dropped) for action in query.actions))
        return self.prompt.in_chat(query, self._tokenizer)

    def _fill_cache(self, queries: Collection[Query]) -> None:
        texts = {text for q in queries for text in (q.prompt, *q.actions)}
        missing = texts - self._cache.keys()
        if not missing:
            return
        if len(self._cache) + len(missing) > _CACHED_TEXTS:
            self._cache.clear()
            missing = texts
        # Sorted, so that the tokenizer's input does not depend on the hash seed.
        ordered = sorted(missing)
        encoded = self._tokenizer(ordered, add_special_tokens=False, return_attention_mask=False)["input_ids"]
        self._cache.update((text, np.asarray(ids, dtype=np.int64)) for text, ids in zip(ordered, encoded, strict=True))

    def _tokenise(self, query: Query) -> TokenisedQuery:
        prompt = self._cache[query.prompt]
        actions = tuple(self._cache[action] for action in query.actions)
        for text, ids in zip((query.prompt, *query.actions), (prompt, *actions), strict=True):
            if not len(ids):
                raise ModelError(f"expected prompt and actions of at least one token each, got none for {text!r}")
        if self._prompt_end:
            prompt = np.append(prompt, self._prompt_end)
        if self._action_end:
            actions = tuple(np.append(ids, self._action_end) for ids in actions)
        longest = len(prompt) + max(map(len, actions))
        if longest > self._max_tokens:
            raise ModelError(
                f"expected prompt + action within the model's {self._max_tokens} tokens, got {longest} "
                f"(prompt {len(prompt)}); shorten the observation or use a model with a longer context. "
                f"The prompt begins: {query.prompt[:80]!r}"
            )
        return TokenisedQuery(prompt, actions)


def _dropped_prefix(tokenizer: PreTrainedTokenizerBase, example: Query) -> str:
    """The prefix to remove from an action's text before it is tokenised: nothing, or its leading space.

    Tokenizers like Llama 2's (Mistral-7B-v0.1, Phi-3) put a space before every text, which would make two.
    """
    prompt, actions = example.prompt, example.actions

    def ids(*texts: str) -> list[list[int]]:
        return tokenizer(list(texts), add_special_tokens=False)["input_ids"]

    [prompt_ids], together = ids(prompt), ids(*(prompt + action for action in actions))
    for prefix in ("", " "):
        if together == [prompt_ids + apart for apart in ids(*(action.removeprefix(prefix) for action in actions))]:
            return prefix
    raise ModelError(
        f"this model's tokenizer merges tokens across the boundary of prompt and action: {prompt[-7:] + actions[0]!r} "
        f"is not {prompt[-7:]!r} and {actions[0]!r}, with or without the space, so actions cannot be scored after a "
        "prompt that they share; expected a tokenizer that splits texts at spaces, and a prompt.template whose "
        "end it splits from an action"
    )
