"""Trains a tokenizer and a two-layer model on a corpus."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.optim import lr_scheduler
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from sacglam.runs.display import Display
from sacglam.tools.pretraining.corpus import Document, Documents
from sacglam.tools.pretraining.recipes import END, IGNORED, PretrainSettings, TinyModel, encode

PIECES = r"\n?\p{Lu}[\p{Ll} ]*:| Go to(?= )| ?\p{L}+| ?\p{N}+|[^\p{L}\p{N}]"
"""What may become one token: a label such as `You see:` with its line break, `Go to`, a word, a number, a sign.

Labels as single tokens make a prompt a third shorter, and the learner that much faster."""

WARM_UP, DECAY, MEASURE_EVERY = 100, 500, 250
"""Steps in which the learning rate rises, in which it falls, and between measurements of matching (with questions)."""
MATCHED = 0.95
"""Share of right answers at which matching counts as learnt."""


@dataclass(frozen=True)
class Pretrained:
    """The number of training steps, the mean loss of the last 100 in nats, and the share of right answers."""

    steps: int
    loss: float
    matching: float | None

    def __str__(self) -> str:
        text = f"{self.steps:,} steps, loss {self.loss:.3f} nats per token at the end"
        if self.matching is None:
            return text
        unmatched = (
            f"\nit answers only {self.matching:.1%} of the questions about which action contains a given word "
            f"({MATCHED:.0%} is enough), so an agent may be slower to learn which action fits its goal. Shorter texts "
            "and fewer different words help"
        )
        return f"{text}, matching {self.matching:.2f}{unmatched if self.matching < MATCHED else ''}"


def pretrain(
    folder: Path,
    kind: type[TinyModel],
    settings: PretrainSettings,
    draw: Documents,
    display: Display,
    questions: Sequence[Document] | None = None,
) -> Pretrained:
    """Train a model and write it to `folder` as transformers files.

    With `questions`, which have one right answer each, training ends once the model answers them, or after
    `settings.steps`. The same settings and documents on the same machine give the same files.
    """
    sample = ["".join(draw()) for _ in range(4000)]
    tokenizer = train_tokenizer(sample, settings)
    settings = fitted(settings, tokenizer, sample)
    torch.manual_seed(settings.seed)
    learner = kind(tokenizer, settings)
    display.stage("pre-training", settings.steps)
    losses = _train(learner, draw, display, questions)
    matching = None if questions is None else matched(learner, questions)
    made = Pretrained(len(losses), sum(losses[-100:]) / len(losses[-100:]), matching)
    logging.disable_progress_bar()  # of writing the files
    learner.model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    record = asdict(replace(settings, steps=made.steps)) | ({} if matching is None else {"matching": matching})
    (folder / "pretraining.json").write_text(json.dumps(record, indent=2) + "\n")
    return made


def fitted(
    settings: PretrainSettings, tokenizer: PreTrainedTokenizerFast, documents: Sequence[str]
) -> PretrainSettings:
    """`settings` with a context that fits these documents, and as many tokens in a batch as before."""
    longest = max(len(row) for row in encode(tokenizer, documents))
    context = min(max(longest, settings.context), settings.max_positions)
    return replace(settings, context=context, batch_size=max(1, settings.batch_size * settings.context // context))


def _train(learner: TinyModel, draw: Documents, display: Display, questions: Sequence[Document] | None) -> list[float]:
    """Train, and return the loss of each step: `settings.steps` of them, or fewer if the `questions` are answered."""
    end, parameters = learner.settings.steps, list(learner.model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=learner.settings.lr, betas=(0.9, 0.98), weight_decay=0.01)
    schedule: lr_scheduler.LRScheduler
    if questions is None:
        schedule = lr_scheduler.OneCycleLR(optimizer, learner.settings.lr, end, pct_start=0.05)
    else:
        schedule = lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, end))
    losses: list[float] = []
    while len(losses) < end:
        loss = learner.loss(draw)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(loss.item())
        done = len(losses)
        display.advance(done)
        if questions is not None and done % MEASURE_EVERY == 0 and done + DECAY < end:
            matching = matched(learner, questions)
            display.note(f"{done} steps, {matching:.0%} of the matching questions answered, {MATCHED:.0%} are enough")
            if matching >= MATCHED:
                end = done + DECAY
                display.stage(f"matching is learnt; pre-training ends after {end} steps", end)
        schedule.step()
    return losses


def rate(step: int, end: int) -> float:
    """The learning rate of this step, from 0 on, as a share of its peak: it rises, stays, and falls towards `end`."""
    return min(1.0, (step + 1) / WARM_UP, (end - step) / DECAY)


@torch.no_grad()
def matched(learner: TinyModel, questions: Sequence[Document]) -> float:
    """The share of questions whose answer is the model's first choice, token for token; 1 if there are none."""
    right: list[bool] = []
    size = learner.settings.batch_size
    for first in range(0, len(questions), size):
        logits_BTV, target_BT = learner.predict(questions[first : first + size])
        beyond_BT = (target_BT == IGNORED) | (target_BT == learner.tokenizer.eos_token_id)
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
