"""Pre-training: what a corpus says and leaves out, and when it ends."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoTokenizer
from typer.testing import CliRunner

from benchmarks.builtin_model import T5
from sacglam.build import build_model
from sacglam.cli import app
from sacglam.config import load
from sacglam.config.sections import PromptConfig
from sacglam.envs import make
from sacglam.envs.base import Split, TextEnv
from sacglam.models.loading import BUILTIN
from sacglam.prompt import Prompt
from sacglam.runs.display import Display
from sacglam.tools.pretraining.corpus import (
    Document,
    Documents,
    env_documents,
    matching,
    questions,
    random_play,
    write,
)
from sacglam.tools.pretraining.recipes import IGNORED, PretrainSettings, TinyModel
from sacglam.tools.pretraining.train import fitted, matched, pretrain, rate, train_tokenizer
from sacglam.types import Observation, Query, Step


def test_a_document_begins_as_a_prompt_does_and_continues_with_actions() -> None:
    played = [
        (Observation(text, ("Go to a", "Grasp")), action) for text, action in (("You see: a", 1), ("You see: b", 0))
    ]
    assert write(Prompt(PromptConfig(history=2)), "g", played) == (
        "Goal: g\nYou see: a\nAction:",
        " Grasp\nYou see: b\nAction: Go to a",
    )
    listed = PromptConfig(template="{observation} ({actions})\n{goal}?\n")
    assert write(Prompt(listed), "g", played) == ("You see: b (Go to a, Grasp)\ng?\n", "Go to a")


@pytest.mark.parametrize("kind", [TinyModel, T5])
def test_the_same_random_play_gives_the_same_files(kind: type[TinyModel], tmp_path: Path) -> None:
    short = PretrainSettings(steps=3, batch_size=4)
    for name in ("one", "two"):
        asked = questions(random_play(Corridor(), Random(0))[1], Random(0))
        pretrain(tmp_path / name, kind, short, corridor_documents(), Display(), asked)
    for file in ("model.safetensors", "tokenizer.json", "config.json", "pretraining.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_any_text_survives_tokenising() -> None:
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


def corridor_documents() -> Documents:
    rng = Random(0)
    return env_documents(Corridor(), random_play(Corridor(), rng)[0], PromptConfig(), rng)


def test_nothing_in_a_transcript_depends_on_its_goal() -> None:
    draw = corridor_documents()
    lines = [text.splitlines() for text in ("".join(draw()) for _ in range(8000)) if text.startswith("Goal:")]
    assert len(lines) > 3000
    same = sum(goal.split()[-1] == seen.split()[2] for goal, seen, *_ in lines) / len(lines)
    assert abs(same - 1 / 3) < 0.03
    for colour in ("red", "blue", "green"):
        taken = [action == "Action: Open it" for goal, _, action, *_ in lines if goal == f"Goal: Open {colour}"]
        assert abs(sum(taken) / len(taken) - 0.5) < 0.05


def test_matching_finds_all_parts_with_a_word() -> None:
    state = Observation("You see: red cat, blue dog.\nYou are on: red mat", ("Go to red cat", "Grasp"))
    single, whole = 0, 0
    for seed in range(200):
        question, *shown, actions, answer = "".join(matching(state, Random(seed))).splitlines()
        assert shown in ([], state.text.splitlines())
        word = question.removeprefix("Which: ")
        parts = ["You see", "red cat", "blue dog", "You are on", "red mat"] if shown else []
        found = [part for part in [*parts, *actions.split(", ")] if word in part.split()]
        assert sorted(answer.removeprefix("Answer: ").split(", ")) == sorted(found)
        single += len(found) == 1
        whole += bool(shown)
    assert single > 160
    assert 80 < whole < 120


def test_words_are_asked_for_without_quotes_and_brackets() -> None:
    state = Observation("", ("Select 'Rome' in 'To'", "Click 'One-way' (now)"))
    asked = {"".join(matching(state, Random(seed))).splitlines()[0].removeprefix("Which: ") for seed in range(100)}
    assert asked == {"Select", "Rome", "in", "To", "Click", "One-way", "now"}
    symbols = Observation("", ("\u2191", "C++ (", "don't"))
    asked = {"".join(matching(symbols, Random(seed))).splitlines()[0].removeprefix("Which: ") for seed in range(100)}
    assert asked == {"\u2191", "C++", "(", "don't"}


def test_questions_have_one_answer_and_come_from_episodes_held_out() -> None:
    played, held_out = random_play(make("playground_simple"), Random(0))
    steps = len([step for episode in played + held_out for step in episode])
    assert 10_000 <= steps < 10_010
    assert len(held_out) == math.ceil((len(played) + len(held_out)) / 10)
    asked = questions(held_out, Random(0))
    assert len(asked) == 100
    states = [observation.text for episode in held_out for observation, _ in episode]
    for question, answer in asked:
        shown = question.partition("\n")[2]
        assert any(shown.startswith(state + "\n") for state in states)
        word, actions = question.splitlines()[0].split()[1], question.splitlines()[-2].split(", ")
        assert [action for action in actions if word in action.split()] == [answer[1:]]
    same = [[(Observation("a a, a a", ("a", "a b")), 0)]]  # each word is in several parts
    assert {answer for _, answer in questions(same, Random(0))} == {" a b"}


def test_the_learning_rate_rises_stays_and_falls() -> None:
    rates = [rate(step, 4000) for step in (0, 49, 99, 2000, 3500, 3750, 3999)]
    assert rates == pytest.approx([0.01, 0.5, 1, 1, 1, 0.5, 0.002])


class Said(Display):
    """What a display was given."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.totals: list[int] = []

    def stage(self, name: str, total: int) -> None:
        self.totals.append(total)

    def note(self, text: str) -> None:
        self.notes.append(text)


def knows_after(measurements: float) -> type[TinyModel]:
    """A model that answers half of the questions at first, and all of them from this measurement on."""

    class Knowing(TinyModel):
        measured = 0

        def loss(self, draw: Documents) -> Tensor:
            return next(self.model.parameters()).sum()

        def predict(self, documents: Sequence[Document]) -> tuple[Tensor, Tensor]:
            self.measured += 1
            target_BT = torch.tensor([[IGNORED, 5], [3, IGNORED]])
            first_BT = torch.tensor([[7, 5], [3 if self.measured > measurements else 4, 7]])
            return functional.one_hot(first_BT, 8).float(), target_BT

    return Knowing


@pytest.mark.parametrize(
    ("known_after", "most", "steps", "stages", "notes", "matching"),
    [
        (1, 4000, 1000, [4000, 1000], ["250 steps, 50%", "500 steps, 100%"], 1.0),
        (math.inf, 1001, 1001, [1001], ["250 steps, 50%", "500 steps, 50%"], 0.5),
        (0, 3, 3, [3], [], 1.0),
    ],
)
def test_a_model_is_trained_until_it_matches_words(
    known_after: float, most: int, steps: int, stages: list[int], notes: list[str], matching: float, tmp_path: Path
) -> None:
    said, asked = Said(), [("a", " b"), ("c", " d")]
    small = PretrainSettings(steps=most, layers=1, hidden=32)
    made = pretrain(tmp_path, knows_after(known_after), small, corridor_documents(), said, asked)
    assert (made.steps, made.matching) == (steps, matching)
    assert (said.totals, [note.partition(" of the matching questions")[0] for note in said.notes]) == (stages, notes)
    record = json.loads((tmp_path / "pretraining.json").read_text())
    assert (record["steps"], record["matching"]) == (steps, matching)


@pytest.mark.parametrize("kind", [TinyModel, T5])
def test_matching_is_measured_token_by_token(kind: type[TinyModel]) -> None:
    draw = corridor_documents()
    sample = [draw() for _ in range(200)]
    tokenizer = train_tokenizer(["".join(document) for document in sample], PretrainSettings())
    settings = fitted(PretrainSettings(), tokenizer, ["".join(document) for document in sample])
    learner = kind(tokenizer, settings)
    asked = questions(random_play(Corridor(), Random(0))[1], Random(0))
    assert matched(learner, asked) < 0.5
    logits_BTV, target_BT = learner.predict(asked[:5])
    assert logits_BTV.shape[:2] == target_BT.shape
    for (_, answer), target_T in zip(asked, target_BT, strict=False):
        assert tokenizer.decode(target_T[target_T != IGNORED]) == answer + "<|end|>"


def test_words_of_an_environment_are_tokens_and_its_states_fit_the_context() -> None:
    draw, settings = corridor_documents(), PretrainSettings()
    sample = ["".join(draw()) for _ in range(500)]
    tokenizer = train_tokenizer(sample, settings)
    assert len(tokenizer.tokenize("Goal: Open green\nYou see: red door, grey wall")) == 9
    longest = max(len(tokenizer.tokenize(text)) for text in sample)
    context, batch_size = fitted(settings, tokenizer, sample).context, fitted(settings, tokenizer, sample).batch_size
    assert settings.context < longest < context <= settings.max_positions
    assert 0.8 < context * batch_size / (settings.context * settings.batch_size) <= 1


def test_pretrain_makes_a_model_of_an_environment_that_a_run_loads(tmp_path: Path) -> None:
    command = ["pretrain", str(tmp_path / "model"), "--env", "bitflip", "--set", "env.options.bits=3", "--steps", "2"]
    (tmp_path / "model").mkdir()  # as an interrupted pre-training leaves it
    made = CliRunner().invoke(app, command)
    assert made.exit_code == 0, made.output
    assert "2 steps, loss" in made.output
    assert "it answers only 0.0% of the questions about which action contains a given word" in made.output
    assert "accelerator" not in made.output
    model = build_model(load(None, [f"model.name={tmp_path}/model", "device=cpu"]))
    assert len(model.tokenizer([Query("Goal: a\nBits: A b C\nAction:", (" Make a", " Make B"))])) == 1
    again = CliRunner().invoke(app, command)
    assert "new or empty folder" in str(again.exception)
