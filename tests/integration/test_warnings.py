"""Runs that do not learn say so while there is time, and at their end, with the cause and what to change."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typing_extensions import override

from sacglam import config as configuration
from sacglam.cli.display import print_summary
from sacglam.runs.display import Display
from sacglam.training import train
from sacglam.types import Observation, Step
from tests.fuzz.common import TINY, quick_runs

NUMBERS = {"played": 0}


@dataclass
class World:
    """Three steps in a state that always reads the same. Nothing is achieved."""

    actions: tuple[str, ...] = ("Go left", "Go right")
    steps: int = 3

    def goals(self, split: str) -> Sequence[str]:
        return ("win",) if split == "train" else ()

    def goal_type(self, goal: str) -> str:
        return "win"

    def optimal_length(self) -> None:
        return None

    def reset(self, goal: str, seed: int) -> Observation:
        self.taken: list[int] = []
        return Observation("You are in a corridor", tuple(self.actions))

    def step(self, action: int) -> Step:
        self.taken.append(action)
        won, last = self.wins(), len(self.taken) == self.steps
        seen = Observation("You are in a corridor", tuple(self.actions))
        return Step(seen, float(won), ("win",) * won, won, last and not won)

    def wins(self) -> bool:
        return False


class Lottery(World):
    """Every third episode wins, whatever the agent does."""

    def wins(self) -> bool:
        NUMBERS["played"] += len(self.taken) == self.steps
        return len(self.taken) == self.steps and NUMBERS["played"] % 3 == 0


class Both(World):
    """Wins once both actions were taken: never with a policy that always takes the same."""

    def wins(self) -> bool:
        return len({*self.taken}) == 2


class Won(World):
    """Any action wins."""

    def wins(self) -> bool:
        return True


class Easier(World):
    """Wins ever more often, evenly: 0.36 of the time after 1,280 steps."""

    def wins(self) -> bool:
        before, NUMBERS["played"] = NUMBERS["played"], NUMBERS["played"] + 1
        return int((before + 1) ** 2 / 7200) > int(before**2 / 7200)


class Notes(Display):
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    @override
    def note(self, text: str) -> None:
        self.notes.append(text)


def world(factory: type[World], **options: Any) -> list[str]:
    return [f"env.name={__name__}:{factory.__name__}", f"env.options={json.dumps(options)}"]


BASE: dict[str, Any] = {**TINY, "algo": {**TINY["algo"], "warmup_updates": 0}}  # type: ignore[dict-item]
LONG = ["env.options.bits=16", "env.options.max_steps=40"]
HARD = ["env.options.bits=8", "env.options.max_steps=2"]
PPO = ["algo={type: ppo, update_interval: 8, batch_size: 8, epochs: 1}"]
CASES = {
    "no-end": (LONG, r"no episode has ended, after (8|16) steps in each copy", True),
    "batch": (["algo.batch_size=500"], r"algo.batch_size is 500 and ended episodes gave", True),
    "warm-up": (
        ["algo.warmup_updates=9"],
        r"all updates trained only the critic \(algo.warmup_updates=9\), after",
        True,
    ),
    "nothing": (world(World), r"no goal was achieved in \d+ episodes", True),
    "no-hindsight": ([*HARD, *PPO], r"none of \d+ episodes achieved its own goal", True),
    "ceiling": ([*HARD, "policy.temperature=1000"], "still almost random: its entropy is 100%", True),
    "collapsed": ([*HARD, "policy.temperature=0.001"], "hardly explores: its entropy is 0%", True),
    "q": (
        [*world(Lottery, actions=["Wait"]), "env.repeats=false", "steps=288"],
        r"Q does not predict the return: over 96 steps of 32 episodes, Q averages .* .correlation 0.00.",
        True,
    ),
    "greedy": (
        [*world(Both, steps=6), "policy.temperature=1000", "evaluation.episodes=50"],
        "greedy success is 0.00, far below the .*83% of the steps in failed episodes .*'Go (left|right)'",
        False,
    ),
    "budget": (
        [*world(Easier, steps=1), "env.repeats=false", "steps=1280", "env.copies=16", "algo.update_interval=64"],
        "the budget is too short: .* 2.[1-6] times the budget to reach 0.9",
        False,
    ),
}


def run(settings: list[str], folder: Path) -> tuple[dict[str, Any], list[str], str]:
    """The summary, what was noted, and what the end of the run said in print and in the model card."""
    display, console = Notes(), Console(file=io.StringIO(), width=120)
    train(configuration.override(configuration.parse(BASE), settings), folder, display)
    summary = json.loads((folder / "summary.json").read_text())
    print_summary(console, folder, summary)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    return summary, display.notes, printed + (folder / "adapter" / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_run_that_does_not_learn_says_why(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_runs(monkeypatch)
    NUMBERS["played"] = 0
    settings, cause, early = CASES[name]
    summary, notes, said = run(settings, tmp_path / "run")
    [warning] = summary["warnings"]
    assert re.search(cause, warning), warning
    assert said.count(warning) == 2  # printed, and in the card
    assert ("untrained model" in said) == (summary["updates"] == 0)
    assert sum(bool(re.match("warning after .* steps: ", note)) for note in notes) == early, notes


def test_a_run_that_succeeds_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_runs(monkeypatch)
    summary, notes, said = run(world(Won), tmp_path / "run")
    assert summary["warnings"] == []
    assert "arning:" not in said
    assert not any("warning" in note for note in notes)
