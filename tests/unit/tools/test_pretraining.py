"""The built-in model: what its corpus says and does not say, and that its recipe makes it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

import pytest
from transformers import AutoConfig, AutoTokenizer

from sacglam.envs import make
from sacglam.envs.playground.vocabulary import Thing
from sacglam.models.loading import BUILTIN, BUILTIN_T5
from sacglam.tools.pretraining.corpus import NAMES, documents, reading, transcript, words
from sacglam.tools.pretraining.recipes import RECIPES, PretrainSettings, split
from sacglam.tools.pretraining.train import pretrain, train_tokenizer


def test_words_are_true() -> None:
    for line in words(Random(0)).splitlines():
        said, answer = line.split(": ")
        thing, name = said.split(" is ")
        colour, type_ = thing.split()[0], thing.split()[-1]
        fits = next(n for n in NAMES if n.text == name).fits(_thing(colour, type_))
        assert answer == ("yes" if fits else "no")


def test_reading_lists_exactly_what_answers_to_the_name() -> None:
    rng = Random(0)
    for _ in range(200):
        question, scene, _, _, answer = reading(rng).splitlines()
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
        lines = transcript(env, rng).splitlines()
        if len(lines) > 4 and lines[3] == "Inventory: empty" and lines[4] != "Action:":
            shares[lines[0].split()[1]].append(lines[4] == "Action: Grasp")
    for taken in shares.values():
        assert len(taken) > 300
        assert abs(sum(taken) / len(taken) - 0.25) < 0.06


def test_no_document_speaks_of_success() -> None:
    draw = documents(Random(0))
    text = " ".join(draw() for _ in range(2000)).lower()
    assert not any(word in text for word in ("achieve", "success", "reward", "done", "should"))


def test_a_document_is_split_where_its_first_action_or_answer_begins() -> None:
    assert split("Goal: g\nYou see: a\nAction: Grasp\nYou see: a\nAction: Go to a") == (
        "Goal: g\nYou see: a\nAction:",
        " Grasp\nYou see: a\nAction: Go to a",
    )
    assert split("Which: any cat\nYou see: a\nAnswer: b, c") == ("Which: any cat\nYou see: a\nAnswer:", " b, c")
    assert split("red cat is cat: yes\nred cat is dog: no") == ("red cat is cat:", " yes\nred cat is dog: no")


@pytest.mark.parametrize("folder", [BUILTIN, BUILTIN_T5])
def test_the_shipped_tokenizer_is_the_recipes(folder: Path) -> None:
    draw = documents(Random(PretrainSettings().seed))
    made = train_tokenizer([draw() for _ in range(4000)], PretrainSettings())
    assert made.get_vocab() == AutoTokenizer.from_pretrained(folder).get_vocab()


@pytest.mark.parametrize(("folder", "architecture"), [(BUILTIN, "llama"), (BUILTIN_T5, "t5")])
def test_the_shipped_model_is_the_recipes_and_small(folder: Path, architecture: str) -> None:
    assert json.loads((folder / "pretraining.json").read_text()) == asdict(RECIPES[architecture].settings)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 4_000_000
    config = AutoConfig.from_pretrained(folder)
    assert config.model_type == architecture
    assert config.hidden_size // config.num_attention_heads in (32, 64)


@pytest.mark.parametrize("architecture", RECIPES)
def test_the_same_recipe_gives_the_same_files(architecture: str, tmp_path: Path) -> None:
    recipe = RECIPES[architecture]
    short = replace(recipe, settings=replace(recipe.settings, steps=3, batch_size=4))
    for name in ("one", "two"):
        pretrain(tmp_path / name, short, lambda step, loss: None)
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_any_text_has_tokens_and_comes_back() -> None:
    tokenizer = AutoTokenizer.from_pretrained(BUILTIN)
    for text in ("Goal: Grow any cat", "Äpfel, 42 — and\ttabs", " 日本"):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    assert len(tokenizer(" Go to red cat", add_special_tokens=False)["input_ids"]) == 3


def _thing(colour: str, type_: str) -> Thing:
    return Thing(colour, type_)


def _plain(text: str) -> tuple[str, str]:
    parts = text.removeprefix("baby ").removesuffix(" seed").split()
    return parts[0], parts[1]
