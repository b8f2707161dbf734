"""Runs that make no update: they say so while there is time, and at their end, with the cause and what to change."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from typing_extensions import override

from sacglam import config as configuration
from sacglam.cli.display import print_summary
from sacglam.runs.display import Display
from sacglam.training import train
from tests.fuzz.common import TINY, cached_models

LONG = ["env.options.bits=16", "env.options.max_steps=40"]


class Notes(Display):
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    @override
    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize(
    ("settings", "cause", "early"),
    [
        (LONG, "no episode has ended, after 16 steps in each of 2 copies", True),
        (["replay.min_size=500"], r"replay.min_size is 500 and ended episodes gave", True),
        (["replay.random_steps=30"], r"lower replay.random_steps \(30\)", False),
        ([], "", False),
    ],
    ids=["no-end", "min-size", "random", "learns"],
)
def test_a_run_without_an_update_says_why(
    settings: list[str], cause: str, early: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached_models(monkeypatch)
    display = Notes()
    train(configuration.override(configuration.parse(TINY), settings), tmp_path / "run", display)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    console = Console(file=io.StringIO(), width=120)
    print_summary(console, tmp_path / "run", summary)
    card = (tmp_path / "run" / "adapter" / "README.md").read_text()
    assert sum(note.startswith("no update yet after half of the steps") for note in display.notes) == early
    if not cause:
        assert summary["updates"] > 0
        assert summary["no_update"] is None
        assert "untrained model" not in card + console.file.getvalue()  # type: ignore[attr-defined]
        return
    assert summary["updates"] == 0
    for said in (summary["no_update"], card, " ".join(console.file.getvalue().split())):  # type: ignore[attr-defined]
        assert re.search(cause, said)
