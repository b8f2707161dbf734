"""The tiny model that is trained on a corpus: its architecture and its loss."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from sacglam.tools.pretraining.corpus import Document, Documents

END = "<|end|>"

IGNORED = -100


@dataclass(frozen=True)
class PretrainSettings:
    """Sizes and hyperparameters; the defaults are for one environment, and `steps` is the maximum."""

    steps: int = 4000
    batch_size: int = 16
    context: int = 128
    lr: float = 1e-3
    seed: int = 0
    vocabulary: int = 4096
    layers: int = 2
    hidden: int = 96
    head_size: int = 32
    mlp: int = 256
    max_positions: int = 1024


def encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text, followed by that of the end token."""
    return tokenizer([text + END for text in texts], add_special_tokens=False)["input_ids"]


class TinyModel:
    """A tiny language model and how it learns. It is decoder-only unless a subclass builds another one, and reads whole
    documents, since a question cut off from its answer teaches nothing.
    """

    initializer_range = 0.1

    def __init__(self, tokenizer: PreTrainedTokenizerFast, settings: PretrainSettings) -> None:
        self.tokenizer = tokenizer
        self.settings = settings
        self.model = self.build(-(-len(tokenizer) // 64) * 64)  # kernels prefer multiples of 64 rows

    def build(self, vocabulary: int) -> PreTrainedModel:
        """The untrained model, with weights from torch's global generator."""
        settings, end = self.settings, self.tokenizer.eos_token_id
        heads = settings.hidden // settings.head_size
        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=settings.hidden,
            intermediate_size=settings.mlp,
            num_hidden_layers=settings.layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=settings.max_positions,
            initializer_range=self.initializer_range,
            tie_word_embeddings=True,
            bos_token_id=end,
            eos_token_id=end,
            pad_token_id=end,
        )
        return LlamaForCausalLM(config)

    def loss(self, draw: Documents) -> Tensor:
        """Draw a batch of documents; return their mean loss per token in nats."""
        ids_BT = self.rows(draw)
        logits_BTV = self.model(input_ids=ids_BT.clamp(min=0), use_cache=False).logits
        return cross_entropy(logits_BTV[:, :-1], ids_BT[:, 1:])

    def rows(self, draw: Documents) -> Tensor:
        """A batch (B, T) of tokens: as many documents in each row as fit, and `IGNORED` after them."""
        rows: list[list[int]] = [[]]
        while True:
            document = encode(self.tokenizer, ["".join(draw())])[0][: self.settings.context]
            if len(rows[-1]) + len(document) > self.settings.context:
                if len(rows) == self.settings.batch_size:
                    return pad(rows, self.settings.context)
                rows.append([])
            rows[-1] += document

    def predict(self, documents: Sequence[Document]) -> tuple[Tensor, Tensor]:
        """Logits (B, T, V) and the tokens (B, T) of the continuations, `IGNORED` elsewhere."""
        ids_BT = pad(encode(self.tokenizer, ["".join(document) for document in documents]), self.settings.context)
        target_BT = ids_BT.clone()
        prompts = encode(self.tokenizer, [prompt for prompt, _ in documents])
        for row_T, prompt in zip(target_BT, prompts, strict=True):
            row_T[: len(prompt) - 1] = IGNORED  # without the end token that `encode` adds
        logits_BTV = self.model(input_ids=ids_BT.clamp(min=0), use_cache=False).logits
        return logits_BTV[:, :-1], target_BT[:, 1:]


def cross_entropy(logits_BTV: Tensor, target_BT: Tensor) -> Tensor:
    """The mean loss of the tokens that are not `IGNORED`."""
    return torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), target_BT.flatten(), ignore_index=IGNORED)


def pad(rows: Sequence[Sequence[int]], longest: int) -> Tensor:
    """Rows of ids as (B, T), cut at `longest` tokens, with `IGNORED` as padding."""
    tensors = [torch.tensor(row[:longest]) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=IGNORED)
