"""The command line prints user text verbatim."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from sacglam.cli.display import RichDisplay, print_summary

FOLDERS = ("runs/[red]x[/]", "runs/[/bold]", "runs/:smile:", "runs/two words", "runs/[link=x]\\")


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("finished", [True, False])
def test_a_folder_name_is_printed_verbatim(folder: str, finished: bool) -> None:
    summary = {
        "finished": finished,
        "env_steps": 640,
        "updates": 40,
        "train_seconds": 1.0,
        "success_heldout": None,
        **{f"success_{when}": {"overall": 0.5, "[red]kind": 0.5} for when in ("random", "before", "after", "sampled")},
        "warnings": [],
    }
    console = Console(file=io.StringIO(), emoji=False)
    print_summary(console, Path(folder), summary)
    print_summary(console, Path(folder), summary, trust=True)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    for option in ("", " --trust"):
        assert f"sacglam {'evaluate' if finished else 'train --resume'} {shlex.quote(folder)}{option}\n" in said
    assert ("[red]kind" in said) == finished


@pytest.mark.parametrize("terminal", [True, False])
def test_a_stage_is_printed_verbatim(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100, emoji=False, color_system=None)
    with RichDisplay(console) as display:
        display.stage("importing [red]x[/]", 1)
        display.note("[/] noted")
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "importing [red]x[/]" in said
    assert "[/] noted" in said


def test_returns_have_a_standard_error() -> None:
    whens = ("random", "before", "after", "sampled")
    summary = {
        **{"finished": True, "env_steps": 640, "updates": 40, "train_seconds": 1.0, "warnings": []},
        **{"success_heldout": None, "return_error_random": None},
        **{f"success_{when}": {"overall": 0.0} for when in whens},
        **{f"return_{when}": -0.25 for when in whens},
        **{f"return_error_{when}": 0.125 for when in whens[1:]},
    }
    console = Console(file=io.StringIO(), width=200)
    print_summary(console, Path("run"), summary)
    [row] = [line for line in console.file.getvalue().splitlines() if "std. error" in line]  # type: ignore[attr-defined]
    assert [cell.strip() for cell in row.split("│")[2:-1]] == ["-0.250", *["-0.250 ± 0.125"] * 3]
