"""Pre-trains the models that come with sacglam, from scratch: what they read, and their recipes.

python -m benchmarks.builtin_model DIR
python -m benchmarks.builtin_model DIR --architecture t5 --threads 1

`builtin` was made with 2 threads, whose number affects the last bits, and `builtin-t5` with 1. Besides transcripts of
random play in Playground and bit flipping, the corpus has two kinds of document, about more than how words are spelt:

* words: whether a name fits an object (a red door is furniture and a red thing).
* reading: which objects of a scene a name fits.

No document says what a goal requires, which action leads to it, or that anything was achieved.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedModel, T5Config, T5ForConditionalGeneration
from typing_extensions import override

from sacglam import cpu
from sacglam.cli.display import RichDisplay, console
from sacglam.config.sections import PromptConfig
from sacglam.envs import TextEnv, make
from sacglam.envs.playground.scene import draw
from sacglam.envs.playground.text import describe
from sacglam.envs.playground.vocabulary import CATEGORIES, Name, Thing, names
from sacglam.prompt import Prompt, query
from sacglam.tools.pretraining.corpus import QUESTION, SHOWN_STEPS, Document, Documents, play, write
from sacglam.tools.pretraining.recipes import IGNORED, PretrainSettings, TinyModel, cross_entropy, encode, pad
from sacglam.tools.pretraining.train import pretrain

CONTINUATION = 32
"""Maximum tokens of a continuation that are learned: an action and the observation after it."""
NAMES: tuple[Name, ...] = names(CATEGORIES)
QUESTIONS = {"llama": {QUESTION: 1.0}, "t5": {QUESTION: 0.5, "Goal: Grasp": 0.25, "Goal: Grow": 0.25}}
"""How *reading* asks, with shares. A decoder that finds a name's objects here also finds them under a goal; an encoder,
whose reading of a scene depends on the whole prompt, has to see such prompts."""


class CutLlama(TinyModel):
    """It learns documents end to end, cut into rows of equal length."""

    initializer_range = 0.02

    @override
    def rows(self, draw: Documents) -> Tensor:
        wanted = self.settings.batch_size * self.settings.context
        ids: list[int] = []
        while len(ids) < wanted:
            for row in encode(self.tokenizer, ["".join(draw()) for _ in range(64)]):
                ids += row
        return torch.tensor(ids[:wanted]).view(self.settings.batch_size, self.settings.context)


class T5(TinyModel):
    """An encoder-decoder with equally many layers in each half; it reads beginnings and learns continuations."""

    @override
    def build(self, vocabulary: int) -> PreTrainedModel:
        settings, end = self.settings, self.tokenizer.eos_token_id
        config = T5Config(
            vocab_size=vocabulary,
            d_model=settings.hidden,
            d_kv=settings.head_size,
            d_ff=settings.mlp,
            num_layers=settings.layers,
            num_decoder_layers=settings.layers,
            num_heads=settings.hidden // settings.head_size,
            feed_forward_proj="gated-gelu",
            dropout_rate=0.0,
            eos_token_id=end,
            pad_token_id=end,
        )
        config.update({"decoder_start_token_id": end})
        return T5ForConditionalGeneration(config)

    @override
    def loss(self, draw: Documents) -> Tensor:
        return cross_entropy(*self.predict([draw() for _ in range(self.settings.batch_size)]))

    @override
    def predict(self, documents: Sequence[Document]) -> tuple[Tensor, Tensor]:
        prompts, continuations = zip(*documents, strict=True)
        prompt_BP = pad(encode(self.tokenizer, prompts), self.settings.context)
        target_BT = pad(encode(self.tokenizer, continuations), CONTINUATION)
        start_B1 = torch.full_like(target_BT[:, :1], self.tokenizer.eos_token_id)
        logits_BTV = self.model(
            input_ids=prompt_BP.clamp(min=0),
            attention_mask=(prompt_BP != IGNORED).long(),
            decoder_input_ids=torch.cat([start_B1, target_BT[:, :-1].clamp(min=0)], dim=1),
            use_cache=False,
        ).logits
        return logits_BTV, target_BT


_SETTINGS = PretrainSettings(steps=2500, batch_size=48, lr=3e-3, vocabulary=512)
RECIPES: dict[str, tuple[type[TinyModel], PretrainSettings]] = {
    "llama": (CutLlama, _SETTINGS),
    "t5": (T5, replace(_SETTINGS, steps=10_000, batch_size=64)),
}
"""By architecture: the model, and its settings before the corpus is known."""


def documents(rng: Random, architecture: str = "llama") -> Documents:
    """The corpus of the model of this architecture; episodes are played as documents are drawn."""
    questions = QUESTIONS[architecture]
    draws = [
        partial(transcript, make("playground_simple"), rng),
        partial(transcript, make("playground"), rng),
        partial(transcript, make("bitflip", bits=10), rng),
        partial(words, rng),
        *(partial(reading, rng, question) for question in questions),
    ]
    weights = [0.3, 0.1, 0.05, 0.1, *(0.45 * share for share in questions.values())]
    return lambda: rng.choices(draws, weights)[0]()


def transcript(env: TextEnv, rng: Random) -> Document:
    """A few steps of an episode of the uniformly random policy under its own goal, from a random step."""
    goal, seed, first = rng.choice(env.goals("train")), rng.randrange(2**31), rng.randrange(6)
    played, last = play(env, goal, seed, first + SHOWN_STEPS, rng)
    if len(played) <= first:
        return query(goal, last).prompt, ""
    return write(Prompt(PromptConfig(history=SHOWN_STEPS)), goal, played[first:])


def words(rng: Random) -> Document:
    """Statements on whether names fit objects."""
    lines = []
    for _ in range(8):
        thing = draw(rng)
        name = _fitting(thing, rng) if rng.random() < 0.5 else rng.choice(NAMES)
        lines.append(f"{describe(thing, True)} is {name.text}: {'yes' if name.fits(thing) else 'no'}")
    asked, colon, answers = "\n".join(lines).partition(":")
    return asked + colon, answers


def reading(rng: Random, question: str = QUESTION) -> Document:
    """The question which objects a name fits, a scene, and the answer."""
    things = [draw(rng) for _ in range(rng.choice((3, 3, 3, 6)))]
    grown = [rng.random() < 0.5 for _ in things]
    name = _fitting(rng.choice(things), rng)
    texts = [describe(thing, g) for thing, g in zip(things, grown, strict=True)]
    on, held = rng.choice(["nothing", *texts]), rng.choice(["empty", *texts])
    scene = f"You see: {', '.join(texts)}\nYou are on: {on}\nInventory: {held}"
    found = [text for text, thing in zip(texts, things, strict=True) if name.fits(thing)]
    rng.shuffle(found)
    return f"{question} {name.text}\n{scene}\nAnswer:", f" {', '.join(found)}"


def _fitting(thing: Thing, rng: Random) -> Name:
    return rng.choice([name for name in NAMES if name.fits(thing)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="must not exist yet")
    parser.add_argument("--architecture", choices=RECIPES, default="llama")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="default: 2500, t5: 10000")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    cpu.prepare(options.threads)
    kind, usual = RECIPES[options.architecture]
    settings = replace(usual, seed=options.seed, steps=options.steps or usual.steps)
    options.folder.mkdir(parents=True)
    with RichDisplay(console) as display:
        draws = documents(Random(options.seed), options.architecture)
        made = pretrain(options.folder, kind, settings, draws, display)
    print(f"the model is in {options.folder}; {made}")


if __name__ == "__main__":
    main()
