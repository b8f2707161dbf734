"""The two tiny models that are made from the corpus: what they are, and what they learn from a document."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

END = "<|end|>"

SPLIT = re.compile(r"^.*?(?:Action|Answer):|^.*?:", re.DOTALL)
"""A document's beginning: up to its first action or answer, else up to its first colon."""
CONTINUATION = 32
"""Tokens of a continuation that are learned: an action and the observation after it."""
IGNORED = -100


@dataclass(frozen=True)
class PretrainSettings:
    """The recipe's numbers; the defaults made the decoder-only model that is shipped."""

    steps: int = 2500
    batch_size: int = 48
    context: int = 128
    lr: float = 3e-3
    seed: int = 0
    vocabulary: int = 512
    layers: int = 2
    hidden: int = 96
    head_size: int = 32
    mlp: int = 256
    max_positions: int = 1024


T5_SETTINGS = PretrainSettings(batch_size=64)
"""Those of the encoder-decoder: the same widths, as many layers in each half, and rows of one document each."""


class Llama:
    """A decoder-only model that learns documents end to end."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, settings: PretrainSettings) -> None:
        """First weights from torch's global generator."""
        self._tokenizer = tokenizer
        self._settings = settings
        heads = settings.hidden // settings.head_size
        config = LlamaConfig(
            vocab_size=settings.vocabulary,
            hidden_size=settings.hidden,
            intermediate_size=settings.mlp,
            num_hidden_layers=settings.layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=settings.max_positions,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.eos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
        )
        self.model: PreTrainedModel = LlamaForCausalLM(config)

    def loss(self, draw: Callable[[], str]) -> Tensor:
        """Mean nats of a token, over a batch of documents that `draw` gives."""
        ids_BT = self._batch(draw)
        logits_BTV = self.model(input_ids=ids_BT, use_cache=False).logits
        return functional.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), ids_BT[:, 1:].flatten())

    def _batch(self, draw: Callable[[], str]) -> Tensor:
        """Documents end to end, cut into rows of equal length, (B, T)."""
        wanted = self._settings.batch_size * self._settings.context
        ids: list[int] = []
        while len(ids) < wanted:
            texts = [draw() + END for _ in range(64)]
            for row in self._tokenizer(texts, add_special_tokens=False)["input_ids"]:
                ids += row
        return torch.tensor(ids[:wanted]).view(self._settings.batch_size, self._settings.context)


class T5:
    """An encoder-decoder that reads a document's beginning and learns how it goes on."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, settings: PretrainSettings) -> None:
        """First weights from torch's global generator."""
        self._tokenizer = tokenizer
        self._settings = settings
        config = T5Config(
            vocab_size=settings.vocabulary,
            d_model=settings.hidden,
            d_kv=settings.head_size,
            d_ff=settings.mlp,
            num_layers=settings.layers,
            num_decoder_layers=settings.layers,
            num_heads=settings.hidden // settings.head_size,
            feed_forward_proj="gated-gelu",
            dropout_rate=0.0,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
        )
        config.update({"decoder_start_token_id": tokenizer.eos_token_id})
        self.model: PreTrainedModel = T5ForConditionalGeneration(config)

    def loss(self, draw: Callable[[], str]) -> Tensor:
        """Mean nats of a token of the continuations, over a batch of documents that `draw` gives."""
        prompts, continuations = zip(*(split(draw()) for _ in range(self._settings.batch_size)), strict=True)
        prompt_BP = self._padded(prompts, self._settings.context)
        target_BT = self._padded(continuations, CONTINUATION)
        start_B1 = torch.full_like(target_BT[:, :1], self._tokenizer.eos_token_id)
        logits_BTV = self.model(
            input_ids=prompt_BP.clamp(min=0),
            attention_mask=(prompt_BP != IGNORED).long(),
            decoder_input_ids=torch.cat([start_B1, target_BT[:, :-1].clamp(min=0)], dim=1),
            use_cache=False,
        ).logits
        return functional.cross_entropy(logits_BTV.flatten(0, 1), target_BT.flatten(), ignore_index=IGNORED)

    def _padded(self, texts: Sequence[str], longest: int) -> Tensor:
        """Texts with their end as ids (B, T), cut at `longest` tokens, `IGNORED` on padding."""
        rows = self._tokenizer([text + END for text in texts], add_special_tokens=False)["input_ids"]
        tensors = [torch.tensor(row[:longest]) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=IGNORED)


def split(document: str) -> tuple[str, str]:
    """A document's beginning, as a prompt ends, and how it goes on."""
    found = SPLIT.match(document)
    assert found, document
    return document[: found.end()], document[found.end() :]


RECIPES: dict[str, tuple[type[Llama] | type[T5], PretrainSettings]] = {
    "llama": (Llama, PretrainSettings()),
    "t5": (T5, T5_SETTINGS),
}
"""Architectures by name, with the numbers that made the shipped model of each."""
