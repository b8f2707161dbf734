"""Pre-training: what a corpus says and does not say, and that the built-in models' recipes make them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

import pytest
from transformers import AutoConfig, AutoTokenizer
from typer.testing import CliRunner

from sacglam.build import build_model
from sacglam.cli import app
from sacglam.config import PromptConfig, load
from sacglam.envs import make
from sacglam.envs.base import Split, TextEnv
from sacglam.envs.playground.vocabulary import Thing
from sacglam.models.loading import BUILTIN, BUILTIN_T5
from sacglam.prompt import Prompt
from sacglam.tools.pretraining.corpus import (
    NAMES,
    builtin_documents,
    matching,
    reading,
    transcript,
    words,
    world_documents,
    write,
)
from sacglam.tools.pretraining.recipes import BUILTIN as RECIPES
from sacglam.tools.pretraining.recipes import WORLD, PretrainSettings, fitted
from sacglam.tools.pretraining.train import pretrain, train_tokenizer
from sacglam.types import Observation, Query, Step


def test_words_are_true() -> None:
    for line in "".join(words(Random(0))).splitlines():
        said, answer = line.split(": ")
        thing, name = said.split(" is ")
        colour, type_ = thing.split()[0], thing.split()[-1]
        fits = next(n for n in NAMES if n.text == name).fits(_thing(colour, type_))
        assert answer == ("yes" if fits else "no")


def test_reading_lists_exactly_what_answers_to_the_name() -> None:
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


def test_no_document_speaks_of_success() -> None:
    draw = builtin_documents(Random(0))
    text = " ".join("".join(draw()) for _ in range(2000)).lower()
    assert not any(word in text for word in ("achieve", "success", "reward", "done", "should"))


def test_a_document_begins_as_a_prompt_does_and_continues_with_actions() -> None:
    played = [
        (Observation(text, ("Go to a", "Grasp")), action) for text, action in (("You see: a", 1), ("You see: b", 0))
    ]
    assert write(Prompt(PromptConfig(history=2)), "g", played) == (
        "Goal: g\nYou see: a\nAction:",
        " Grasp\nYou see: b\nAction: Go to a",
    )
    listed = PromptConfig(template="{observation} ({actions})\n{goal}?", before_action="\n")
    assert write(Prompt(listed), "g", played) == ("You see: b (Go to a, Grasp)\ng?", "\nGo to a")
    asked, answer = reading(Random(0))
    assert asked.endswith("\nAnswer:")
    assert answer.startswith(" ")


@pytest.mark.parametrize(("folder", "architecture"), [(BUILTIN, "llama"), (BUILTIN_T5, "t5")])
def test_the_shipped_tokenizer_is_the_recipes(folder: Path, architecture: str) -> None:
    draw = builtin_documents(Random(PretrainSettings().seed), architecture)
    made = train_tokenizer(["".join(draw()) for _ in range(4000)], PretrainSettings())
    assert made.get_vocab() == AutoTokenizer.from_pretrained(folder).get_vocab()


@pytest.mark.parametrize(("folder", "architecture"), [(BUILTIN, "llama"), (BUILTIN_T5, "t5")])
def test_the_shipped_model_is_the_recipes_and_small(folder: Path, architecture: str) -> None:
    assert json.loads((folder / "pretraining.json").read_text()) == asdict(RECIPES[architecture].settings)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 4_000_000
    config = AutoConfig.from_pretrained(folder)
    assert config.model_type == architecture
    assert config.hidden_size // config.num_attention_heads in (32, 64)


@pytest.mark.parametrize("architecture", RECIPES)
@pytest.mark.slow
def test_the_same_recipe_gives_the_same_files(architecture: str, tmp_path: Path) -> None:
    recipe = RECIPES[architecture]
    short = replace(recipe, settings=replace(recipe.settings, steps=3, batch_size=4))
    for name in ("one", "two"):
        pretrain(tmp_path / name, short, builtin_documents(Random(0)), lambda step: None)
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_any_text_has_tokens_and_comes_back() -> None:
    tokenizer = AutoTokenizer.from_pretrained(BUILTIN)
    for text in ("Goal: Grow any cat", "Äpfel, 42 — and\ttabs", " 日本"):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    assert len(tokenizer(" Go to red cat", add_special_tokens=False)["input_ids"]) == 3


class Corridor(TextEnv):
    """A door with the colour of the goal, and the only way to it: the first action."""

    def goals(self, split: Split) -> list[str]:
        return ["Open red", "Open blue", "Open green"] if split == "train" else []

    def goal_type(self, goal: str) -> str:
        return "open"

    def reset(self, goal: str, seed: int) -> Observation:
        self._goal, self._left = goal, 4
        return self._observe()

    def step(self, action: int) -> Step:
        self._left -= 1
        achieved = (self._goal,) if action == 0 else ()
        return Step(self._observe(), float(action == 0), achieved, action == 0, action != 0 and not self._left)

    def optimal_length(self) -> int:
        return 1

    def _observe(self) -> Observation:
        return Observation(f"You see: {self._goal.split()[1]} door, {'grey wall, ' * 20}no end", ("Open it", "Wait"))


def test_nothing_in_a_worlds_transcripts_depends_on_the_goal_that_they_show() -> None:
    draw = world_documents(Corridor(), PromptConfig(), Random(0))
    lines = [text.splitlines() for text in ("".join(draw()) for _ in range(8000)) if text.startswith("Goal:")]
    assert len(lines) > 3000
    same = sum(goal.split()[-1] == seen.split()[2] for goal, seen, *_ in lines) / len(lines)
    assert abs(same - 1 / 3) < 0.03
    for colour in ("red", "blue", "green"):
        taken = [action == "Action: Open it" for goal, _, action, *_ in lines if goal == f"Goal: Open {colour}"]
        assert abs(sum(taken) / len(taken) - 0.5) < 0.05


def test_matching_finds_all_parts_with_a_word() -> None:
    state = Observation("You see: red cat, blue dog.\nYou are on: red mat", ("Go to red cat", "Grasp"))
    for seed in range(100):
        question, *shown, answer = "".join(matching(state, Random(seed))).splitlines()
        word = question.removeprefix("Which: ")
        parts = ["You see", "red cat", "blue dog", "You are on", "red mat", "Go to red cat", "Grasp"]
        assert shown[:2] == state.text.splitlines()
        assert sorted(answer.removeprefix("Answer: ").split(", ")) == sorted(p for p in parts if word in p.split())


def test_a_worlds_words_are_tokens_and_its_states_fit_the_context() -> None:
    draw, settings = world_documents(Corridor(), PromptConfig(), Random(0)), WORLD["llama"].settings
    sample = ["".join(draw()) for _ in range(500)]
    tokenizer = train_tokenizer(sample, settings)
    assert len(tokenizer.tokenize("Goal: Open green\nYou see: red door, grey wall")) == 9
    longest = max(len(tokenizer.tokenize(text)) for text in sample)
    context, batch_size = fitted(settings, tokenizer, sample).context, fitted(settings, tokenizer, sample).batch_size
    assert settings.context < longest < context <= settings.max_positions
    assert 0.8 < context * batch_size / (settings.context * settings.batch_size) <= 1


@pytest.mark.parametrize("architecture", WORLD)
def test_pretrain_makes_a_model_of_an_environment_that_a_run_loads(architecture: str, tmp_path: Path) -> None:
    command = ["pretrain", str(tmp_path / "model"), "--env", "bitflip", "--set", "env.options.bits=3", "--steps", "2"]
    command += ["--architecture", architecture, "--threads", "1"]
    made = CliRunner().invoke(app, command)
    assert made.exit_code == 0, made.output
    assert "the model is in" in made.output
    model = build_model(load(None, [f"model.name={tmp_path}/model", "device=cpu"]))
    assert len(model.tokenizer([Query("Goal: a\nBits: A b C\nAction:", (" Make a", " Make B"))])) == 1
    assert CliRunner().invoke(app, command).exit_code == 1  # the folder is there


def _thing(colour: str, type_: str) -> Thing:
    return Thing(colour, type_)


def _plain(text: str) -> tuple[str, str]:
    parts = text.removeprefix("baby ").removesuffix(" seed").split()
    return parts[0], parts[1]
