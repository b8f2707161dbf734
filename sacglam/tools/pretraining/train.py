"""Trains a tokenizer and a model of two layers on a corpus."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sacglam.runs.display import Display
from sacglam.tools.pretraining.corpus import Document, Documents
from sacglam.tools.pretraining.recipes import END, IGNORED, PretrainSettings, Recipe, fitted

PIECES = r"\n?\p{Lu}[\p{Ll} ]*:| Go to(?= )| ?\p{L}+| ?\p{N}+|[^\p{L}\p{N}]"
"""What may become one token: a label such as `You see:` with its line break, `Go to`, a word, a number, a sign.

Labels as one token make a prompt a third shorter, and the learner that much faster."""


WARM_UP, DECAY, MEASURE_EVERY = 100, 500, 250
"""Steps in which a world's rate rises and falls, and those between two measurements of matching."""
MATCHED = 0.95
"""Share of right answers at which matching is learnt."""


@dataclass(frozen=True)
class Pretrained:
    """The steps of a training, the mean loss of the last 100 in nats, and the share of questions answered right."""

    steps: int
    loss: float
    matching: float | None

    def __str__(self) -> str:
        text = f"{self.steps:,} steps, loss {self.loss:.3f} nats a token at the end"
        if self.matching is None:
            return text
        advice = "try more --steps, or texts that are shorter or have fewer different words"
        unmatched = f"\nwords were not matched: an agent will hardly learn which action fits its goal; {advice}"
        return f"{text}, matching {self.matching:.2f}{unmatched if self.matching < MATCHED else ''}"


def pretrain(
    folder: Path, recipe: Recipe, draw: Documents, display: Display, questions: Sequence[Document] | None = None
) -> Pretrained:
    """Train a model and write it to `folder` as transformers files.

    With `questions`, which have one right answer each, until the model answers them, and in any case for no more than
    the recipe's steps. The same recipe and documents on the same machine give the same files.
    """
    sample = ["".join(draw()) for _ in range(4000)]
    tokenizer = train_tokenizer(sample, recipe.settings)
    settings = fitted(recipe.settings, tokenizer, sample)
    torch.manual_seed(settings.seed)
    model = recipe.build(tokenizer, settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, betas=(0.9, 0.98), weight_decay=0.01)

    def step() -> float:
        loss = recipe.loss(model, tokenizer, settings, draw)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    display.stage("pre-training", settings.steps)
    if questions is None:
        losses, matching = _one_cycle(step, optimizer, settings, display), None
    else:
        measure = partial(matched, recipe, model, tokenizer, settings, questions)
        losses, matching = _until_matched(step, optimizer, settings, display, measure)
    made = Pretrained(len(losses), sum(losses[-100:]) / len(losses[-100:]), matching)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    record = asdict(replace(settings, steps=made.steps)) | ({} if matching is None else {"matching": matching})
    (folder / "pretraining.json").write_text(json.dumps(record, indent=2) + "\n")
    return made


def _one_cycle(
    step: Callable[[], float], optimizer: torch.optim.Optimizer, settings: PretrainSettings, display: Display
) -> list[float]:
    """The losses of a given number of steps, with a rate that rises and falls."""
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.lr, settings.steps, pct_start=0.05)
    losses = []
    for done in range(1, settings.steps + 1):
        losses.append(step())
        schedule.step()
        display.advance(done)
    return losses


def _until_matched(
    step: Callable[[], float],
    optimizer: torch.optim.Optimizer,
    settings: PretrainSettings,
    display: Display,
    measure: Callable[[], float],
) -> tuple[list[float], float]:
    """The losses of as many steps as matching takes, of which the last `DECAY` end at a rate of 0; matching then."""
    losses: list[float] = []
    end = settings.steps
    while len(losses) < end:
        optimizer.param_groups[0]["lr"] = rate(settings.lr, len(losses), end)
        losses.append(step())
        done = len(losses)
        display.advance(done)
        if done % MEASURE_EVERY == 0 and done + DECAY < end:
            matching = measure()
            display.note(f"{done} steps, matching {matching:.2f}")
            if matching >= MATCHED:
                end = done + DECAY
                display.stage(f"matching is learnt; pre-training ends after {end} steps", end)
    return losses, measure()


def rate(peak: float, step: int, end: int) -> float:
    """The learning rate of this step, counted from 0: rises, stays, and falls towards `end`."""
    return peak * min(1.0, (step + 1) / WARM_UP, (end - step) / DECAY)


@torch.no_grad()
def matched(
    recipe: Recipe,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    settings: PretrainSettings,
    questions: Sequence[Document],
) -> float:
    """The share of questions whose answer is the model's first choice, token for token; 1 if there are none."""
    right: list[bool] = []
    for first in range(0, len(questions), settings.batch_size):
        asked = questions[first : first + settings.batch_size]
        logits_BTV, target_BT = recipe.predict(model, tokenizer, settings, asked)
        beyond_BT = (target_BT == IGNORED) | (target_BT == tokenizer.eos_token_id)
        right += ((logits_BTV.argmax(-1) == target_BT) | beyond_BT).all(-1).tolist()
    return sum(right) / len(right) if right else 1.0


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
