"""Trains a tokenizer and a model of two layers on a corpus."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from sacglam.tools.pretraining.corpus import Documents
from sacglam.tools.pretraining.recipes import END, PretrainSettings, Recipe, fitted

PIECES = r"\n?\p{Lu}[\p{Ll} ]*:| Go to(?= )| ?\p{L}+| ?\p{N}+|[^\p{L}\p{N}]"
"""What may become one token: a label such as `You see:` with its line break, `Go to`, a word, a number, a sign.

Labels as one token make a prompt a third shorter, and the learner that much faster."""


def pretrain(folder: Path, recipe: Recipe, draw: Documents, advance: Callable[[int], None]) -> float:
    """Train a model, write it to `folder` as transformers files, and return the last 100 steps' mean loss in nats.

    `advance` is called with the number of steps done. The same recipe and documents on the same machine give the same
    files.
    """
    sample = ["".join(draw()) for _ in range(4000)]
    tokenizer = train_tokenizer(sample, recipe.settings)
    settings = fitted(recipe.settings, tokenizer, sample)
    torch.manual_seed(settings.seed)
    model = recipe.build(tokenizer, settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.lr, settings.steps, pct_start=0.05)
    losses = []
    for step in range(settings.steps):
        loss = recipe.loss(model, tokenizer, settings, draw)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        advance(step + 1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "pretraining.json").write_text(json.dumps(asdict(settings), indent=2) + "\n")
    return sum(losses[-100:]) / len(losses[-100:])


def train_tokenizer(texts: list[str], settings: PretrainSettings) -> PreTrainedTokenizerFast:
    """Byte-level BPE: each word of the corpus is one token, and any other text can still be encoded."""
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
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, model_max_length=settings.max_positions
    )
