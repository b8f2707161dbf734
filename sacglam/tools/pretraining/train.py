"""Trains the built-in models: a tokenizer and a model of two layers, from the corpus."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from random import Random

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from sacglam.tools.pretraining.corpus import documents
from sacglam.tools.pretraining.recipes import END, PretrainSettings, Recipe

PIECES = r"\n?\p{Lu}[\p{Ll} ]*:| Go to(?= )| ?\p{L}+| ?\p{N}+|[^\p{L}\p{N}]"
"""What may become one token: a label such as `You see:` with its line break, `Go to`, a word, a number, a sign.

Labels as one token make a prompt a third shorter, and the learner that much faster."""


def pretrain(folder: Path, recipe: Recipe, progress: Callable[[int, float], None]) -> float:
    """Train a model, write it to `folder` as transformers files, and return the last 100 steps' mean loss in nats.

    `progress` is called with each step and its loss. The same recipe on the same machine gives the same files.
    """
    settings = recipe.settings
    draw = documents(Random(settings.seed))
    tokenizer = train_tokenizer([draw() for _ in range(4000)], settings)
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
        progress(step + 1, losses[-1])
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
