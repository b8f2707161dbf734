"""Training of the built-in model: a tokenizer and a Llama of two layers, from the corpus."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from sacglam.pretraining.corpus import documents

END = "<|end|>"

PIECES = r"\n?\p{Lu}[\p{Ll} ]*:| Go to(?= )| ?\p{L}+| ?\p{N}+|[^\p{L}\p{N}]"
"""What may become one token: a label such as `You see:` with its line break, `Go to`, a word, a number, a sign.

Labels as one token make a prompt a third shorter, and the learner that much faster."""


@dataclass(frozen=True)
class PretrainSettings:
    """The recipe; its defaults made the model that is shipped."""

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


Progress = Callable[[int, float], None]


def pretrain(folder: Path, settings: PretrainSettings, progress: Progress) -> float:
    """Make the model and write it to `folder` as transformers files; the mean loss of the last 100 steps, in nats.

    `progress` is called with the step and its loss. The same settings on the same machine give the same files.
    """
    draw = documents(Random(settings.seed))
    tokenizer = train_tokenizer([draw() for _ in range(4000)], settings)
    torch.manual_seed(settings.seed)
    model = LlamaForCausalLM(_architecture(tokenizer, settings))  # type: ignore[no-untyped-call]
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.lr, settings.steps, pct_start=0.05)
    losses = []
    for step in range(settings.steps):
        ids_BT = _batch(draw, tokenizer, settings)
        logits_BTV = model(input_ids=ids_BT, use_cache=False).logits
        loss = functional.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), ids_BT[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        progress(step + 1, losses[-1])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "pretraining.json").write_text(json.dumps(asdict(settings), indent=2) + "\n")
    return sum(losses[-100:]) / len(losses[-100:])


def train_tokenizer(texts: list[str], settings: PretrainSettings) -> PreTrainedTokenizerFast:
    """Byte-level BPE: the corpus' words are one token each, and any other text still has tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, model_max_length=settings.max_positions
    )


def _architecture(tokenizer: PreTrainedTokenizerFast, settings: PretrainSettings) -> LlamaConfig:
    heads = settings.hidden // settings.head_size
    return LlamaConfig(
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


def _batch(draw: Callable[[], str], tokenizer: PreTrainedTokenizerFast, settings: PretrainSettings) -> torch.Tensor:
    """Documents end to end, cut into rows of equal length, (B, T)."""
    wanted = settings.batch_size * settings.context
    ids: list[int] = []
    while len(ids) < wanted:
        texts = [draw() + END for _ in range(64)]
        for row in tokenizer(texts, add_special_tokens=False)["input_ids"]:
            ids += row
    return torch.tensor(ids[:wanted]).view(settings.batch_size, settings.context)
