"""What `curves.png` draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from sacglam.runs import curves
from sacglam.runs.directory import RunDirectory
from sacglam.runs.logs import LineLog

INITIAL = [{"env_steps": 0, "updates": 20 * i, "q": 0.1 * i} for i in (1, 2)]
EVALUATED = {"env_steps": 0, "updates": 40, "eval_success/overall": 0.8}
ONLINE = [{"env_steps": 320 * i, "updates": 40 + 80 * i, "q": 0.5, "success": 0.9} for i in (1, 2)]


def drawn(lines: list[dict[str, float]], folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The axis' name, and the points of each line in the panels of success and of Q."""
    made: list[Figure] = []

    class Kept(Figure):
        def savefig(self, *args: Any, **options: Any) -> None:
            made.append(self)
            super().savefig(*args, **options)

    monkeypatch.setattr(curves, "Figure", Kept)
    run = RunDirectory(folder)
    for line in lines:
        LineLog(run.metrics_file).append(line)
    curves.draw_curves(run)
    [figure] = made
    panels = {axes.get_title(): axes for axes in figure.axes}
    found: dict[str, Any] = {axes.get_xlabel(): None for axes in figure.axes}
    for axes in (panels["success"], panels["Q and target"]):
        found |= {str(line.get_label()): line.get_xydata().tolist() for line in axes.lines}
    return found


def test_initial_updates_are_not_drawn_over_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn([*INITIAL, EVALUATED, *ONLINE], tmp_path, monkeypatch) == {
        "environment steps": None,
        "training (sampled)": [[320, 0.9], [640, 0.9]],
        "evaluation (greedy)": [[0, 0.8]],
        "q": [[320, 0.5], [640, 0.5]],
    }


def test_a_run_without_steps_is_drawn_over_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn([*INITIAL, EVALUATED], tmp_path, monkeypatch) == {
        "updates": None,
        "evaluation (greedy)": [[40, 0.8]],
        "q": [[20, 0.1], [40, 0.2]],
    }
