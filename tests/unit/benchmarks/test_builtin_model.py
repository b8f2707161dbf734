"""What the models that come with sacglam have read, and whether their recipes make them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

import pytest
from transformers import AutoConfig, AutoTokenizer

from benchmarks.builtin_model import NAMES, RECIPES, documents, reading, transcript, words
from sacglam.envs import make
from sacglam.envs.playground.vocabulary import Thing
from sacglam.models.loading import BUILTIN, BUILTIN_T5
from sacglam.runs.display import Display
from sacglam.tools.pretraining.train import pretrain, train_tokenizer


def test_words_are_true() -> None:
    for line in "".join(words(Random(0))).splitlines():
        said, answer = line.split(": ")
        thing, name = said.split(" is ")
        colour, type_ = thing.split()[0], thing.split()[-1]
        fits = next(n for n in NAMES if n.text == name).fits(_thing(colour, type_))
        assert answer == ("yes" if fits else "no")


def test_reading_lists_exactly_the_objects_that_the_name_fits() -> None:
    rng = Random(0)
    for _ in range(200):
        question, scene, _, _, answer = "".join(reading(rng)).splitlines()
        name = next(n for n in NAMES if n.text == question.removeprefix("Which: "))
        seen = scene.removeprefix("You see: ").split(", ")
        fitting = [text for text in seen if name.fits(_thing(*_plain(text)))]
        assert Counter(answer.removeprefix("Answer: ").split(", ")) == Counter(fitting)


def test_actions_of_transcripts_do_not_depend_on_the_goal() -> None:
    """Among the first actions under Grasp goals with an empty hand, `Grasp` is one in four, as under Grow goals."""
    rng = Random(0)
    env = make("playground_simple")
    shares = {"Grasp": [], "Grow": []}  # type: dict[str, list[bool]]
    for _ in range(4000):
        lines = "".join(transcript(env, rng)).splitlines()
        if len(lines) > 4 and lines[3] == "Inventory: empty" and lines[4] != "Action:":
            shares[lines[0].split()[1]].append(lines[4] == "Action: Grasp")
    for taken in shares.values():
        assert len(taken) > 300
        assert abs(sum(taken) / len(taken) - 0.25) < 0.06


def test_no_document_mentions_success() -> None:
    draw = documents(Random(0))
    text = " ".join("".join(draw()) for _ in range(2000)).lower()
    assert not any(word in text for word in ("achieve", "success", "reward", "done", "should"))


@pytest.mark.parametrize(("folder", "architecture"), [(BUILTIN, "llama"), (BUILTIN_T5, "t5")])
def test_the_shipped_tokenizer_is_the_one_of_its_recipe(folder: Path, architecture: str) -> None:
    draw = documents(Random(0), architecture)
    made = train_tokenizer(["".join(draw()) for _ in range(4000)], RECIPES[architecture][1])
    assert made.get_vocab() == AutoTokenizer.from_pretrained(folder).get_vocab()


@pytest.mark.parametrize(("folder", "architecture"), [(BUILTIN, "llama"), (BUILTIN_T5, "t5")])
def test_the_shipped_model_has_its_recipes_settings_and_is_small(folder: Path, architecture: str) -> None:
    assert json.loads((folder / "pretraining.json").read_text()) == asdict(RECIPES[architecture][1])
    assert sum(file.stat().st_size for file in folder.iterdir()) < 4_000_000
    config = AutoConfig.from_pretrained(folder)
    assert config.model_type == architecture
    assert config.hidden_size // config.num_attention_heads in (32, 64)


@pytest.mark.parametrize("architecture", RECIPES)
@pytest.mark.slow
def test_the_same_recipe_gives_the_same_files(architecture: str, tmp_path: Path) -> None:
    kind, settings = RECIPES[architecture]
    short = replace(settings, steps=3, batch_size=4)
    for name in ("one", "two"):
        pretrain(tmp_path / name, kind, short, documents(Random(0)), Display())
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def _thing(colour: str, type_: str) -> Thing:
    return Thing(colour, type_)


def _plain(text: str) -> tuple[str, str]:
    parts = text.removeprefix("baby ").removesuffix(" seed").split()
    return parts[0], parts[1]
