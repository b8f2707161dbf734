"""The two tiny models that are trained on a corpus: their architectures and losses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

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

from sacglam.tools.pretraining.corpus import Document, Documents

END = "<|end|>"

CONTINUATION = 32
"""Tokens that are learned of a continuation: an action and the observation after it."""
IGNORED = -100


@dataclass(frozen=True)
class PretrainSettings:
    """Sizes and hyperparameters; the defaults made the shipped decoder-only model."""

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


def fitted(
    settings: PretrainSettings, tokenizer: PreTrainedTokenizerFast, documents: Sequence[str]
) -> PretrainSettings:
    """`settings` with a context in which these documents fit, and as many tokens in a batch as before."""
    longest = max(len(row) for row in _encode(tokenizer, documents))
    context = min(max(longest, settings.context), settings.max_positions)
    return replace(settings, context=context, batch_size=max(1, settings.batch_size * settings.context // context))


@dataclass(frozen=True)
class Recipe:
    """An architecture with the settings of its shipped model.

    `build` gives the untrained model, with weights from torch's global generator; `loss` draws a batch of documents and
    gives their mean loss per token in nats. `predict` gives logits (B, T, V) and the tokens (B, T) of documents'
    continuations, with `IGNORED` where there is none.
    """

    settings: PretrainSettings
    build: Callable[[PreTrainedTokenizerFast, PretrainSettings], PreTrainedModel]
    loss: Callable[[PreTrainedModel, PreTrainedTokenizerFast, PretrainSettings, Documents], Tensor]
    predict: Callable[
        [PreTrainedModel, PreTrainedTokenizerFast, PretrainSettings, Sequence[Document]], tuple[Tensor, Tensor]
    ]


def build_llama(
    tokenizer: PreTrainedTokenizerFast, settings: PretrainSettings, initializer_range: float = 0.02
) -> PreTrainedModel:
    """A decoder-only model; `initializer_range` is the standard deviation of its first weights."""
    heads = settings.hidden // settings.head_size
    config = LlamaConfig(
        vocab_size=_rounded(len(tokenizer)),
        hidden_size=settings.hidden,
        intermediate_size=settings.mlp,
        num_hidden_layers=settings.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=settings.max_positions,
        initializer_range=initializer_range,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def llama_loss(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, settings: PretrainSettings, draw: Documents
) -> Tensor:
    """Learns documents end to end, cut into rows of equal length."""
    wanted = settings.batch_size * settings.context
    ids: list[int] = []
    while len(ids) < wanted:
        for row in _encode(tokenizer, ["".join(draw()) for _ in range(64)]):
            ids += row
    ids_BT = torch.tensor(ids[:wanted]).view(settings.batch_size, settings.context)
    logits_BTV = model(input_ids=ids_BT, use_cache=False).logits
    return functional.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), ids_BT[:, 1:].flatten())


def llama_whole_loss(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, settings: PretrainSettings, draw: Documents
) -> Tensor:
    """Learns whole documents, as many in a row as fit: a question that is cut off from its answer teaches nothing."""
    rows: list[list[int]] = [[]]
    while True:
        (document,) = _encode(tokenizer, ["".join(draw())])
        if len(rows[-1]) + len(document) > settings.context:
            if len(rows) == settings.batch_size:
                break
            rows.append([])
        rows[-1] += document[: settings.context]
    ids_BT = _pad(rows, settings.context)
    logits_BTV = model(input_ids=ids_BT.clamp(min=0), use_cache=False).logits
    return functional.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), ids_BT[:, 1:].flatten(), ignore_index=IGNORED)


def llama_predict(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    settings: PretrainSettings,
    documents: Sequence[Document],
) -> tuple[Tensor, Tensor]:
    """Next tokens where continuations are."""
    rows = _encode(tokenizer, ["".join(document) for document in documents])
    ids_BT = _pad(rows, settings.context)
    target_BT = ids_BT.clone()
    for row_T, prompt in zip(target_BT, _encode(tokenizer, [prompt for prompt, _ in documents]), strict=True):
        row_T[: len(prompt) - 1] = IGNORED  # but for its end
    logits_BTV = model(input_ids=ids_BT.clamp(min=0), use_cache=False).logits
    return logits_BTV[:, :-1], target_BT[:, 1:]


def build_t5(tokenizer: PreTrainedTokenizerFast, settings: PretrainSettings) -> PreTrainedModel:
    """An encoder-decoder with as many layers in each half."""
    config = T5Config(
        vocab_size=_rounded(len(tokenizer)),
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
    return T5ForConditionalGeneration(config)


def t5_loss(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, settings: PretrainSettings, draw: Documents
) -> Tensor:
    """Reads the beginning of each document and learns its continuation."""
    documents = [draw() for _ in range(settings.batch_size)]
    logits_BTV, target_BT = t5_predict(model, tokenizer, settings, documents)
    return functional.cross_entropy(logits_BTV.flatten(0, 1), target_BT.flatten(), ignore_index=IGNORED)


def t5_predict(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    settings: PretrainSettings,
    documents: Sequence[Document],
) -> tuple[Tensor, Tensor]:
    """The decoder's next tokens."""
    prompts, continuations = zip(*documents, strict=True)
    prompt_BP = _pad(_encode(tokenizer, prompts), settings.context)
    target_BT = _pad(_encode(tokenizer, continuations), CONTINUATION)
    start_B1 = torch.full_like(target_BT[:, :1], tokenizer.eos_token_id)
    logits_BTV = model(
        input_ids=prompt_BP.clamp(min=0),
        attention_mask=(prompt_BP != IGNORED).long(),
        decoder_input_ids=torch.cat([start_B1, target_BT[:, :-1].clamp(min=0)], dim=1),
        use_cache=False,
    ).logits
    return logits_BTV, target_BT


def _rounded(vocabulary: int) -> int:
    """Rows of the embedding: as many as kernels like."""
    return -(-vocabulary // 64) * 64


def _encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    ids: list[list[int]] = tokenizer([text + END for text in texts], add_special_tokens=False)["input_ids"]
    return ids


def _pad(rows: Sequence[Sequence[int]], longest: int) -> Tensor:
    """Rows of ids as (B, T), cut at `longest` tokens, with `IGNORED` as padding."""
    tensors = [torch.tensor(row[:longest]) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=IGNORED)


BUILTIN = {
    "llama": Recipe(PretrainSettings(), build_llama, llama_loss, llama_predict),
    "t5": Recipe(PretrainSettings(steps=10_000, batch_size=64), build_t5, t5_loss, t5_predict),
}
"""The recipes of the models that come with sacglam."""
_LLAMA = replace(BUILTIN["llama"], build=partial(build_llama, initializer_range=0.1), loss=llama_whole_loss)
WORLD = {
    name: replace(recipe, settings=replace(recipe.settings, steps=4000, batch_size=16, vocabulary=4096, lr=1e-3))
    for name, recipe in {"llama": _LLAMA, "t5": BUILTIN["t5"]}.items()
}
"""The recipes of a model for one world, whose corpus has fewer words; `steps` are the most that it is trained for."""
