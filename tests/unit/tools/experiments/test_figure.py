"""Pictures show what they are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.image import imread

from sacglam.tools.experiments.figure import draw_report
from sacglam.tools.experiments.statistics import estimate

BLUE = (0x00 / 255, 0x72 / 255, 0xB2 / 255)


def painted(file: Path, colour: tuple[float, float, float]) -> int:
    """Pixels of a colour."""
    return int((np.abs(imread(file)[..., :3] - colour).max(axis=-1) < 0.01).sum())


def group(title: str, *labels: str) -> dict[str, Any]:
    ends = {label: [1 - i / 2, 0.8 - i / 2] for i, label in enumerate(labels)}
    curves = {
        label: {str(seed): {"overall": {"steps": (0, 1), "values": (0, end)}} for seed, end in enumerate(both)}
        for label, both in ends.items()
    }
    random = {"overall": estimate([0.3])}
    members = [{"label": label, "seeds": [0, 1], "curves": curves[label], "random": random} for label in labels]
    return {"title": title, "metric": None, "axes": ["steps"], "members": members}


def draw(file: Path, *groups: dict[str, Any]) -> None:
    draw_report({"title": "title", "groups": groups}, file)


def test_three_panels_take_two_rows(tmp_path: Path) -> None:
    one, three = tmp_path / "one.png", tmp_path / "three.png"
    draw(one, group("a", "x"))
    draw(three, *(group(name, "x", "y") for name in "abc"))
    assert imread(three).shape[0] > 1.8 * imread(one).shape[0]
    assert imread(three).shape[1] == 2 * imread(one).shape[1]
    assert painted(three, BLUE) > 2.5 * painted(one, BLUE)


def test_a_label_keeps_its_colour_where_another_comes_first(tmp_path: Path) -> None:
    draw(tmp_path / "both.png", group("a", "x", "y"), group("b", "y"))
    width = imread(tmp_path / "both.png").shape[1]
    right = imread(tmp_path / "both.png")[:, width // 2 :, :3]
    assert (np.abs(right - BLUE).max(axis=-1) < 0.01).sum() == 0


def test_a_metric_without_points_yet_is_left_out(tmp_path: Path) -> None:
    empty = group("a", "first")
    empty["metric"] = "goal_types"
    for seed in empty["members"][0]["curves"].values():
        seed["goal_types"] = {"steps": [], "values": []}
    draw(tmp_path / "report.png", empty, group("b", "first"))
    assert painted(tmp_path / "report.png", BLUE) > 100


def test_without_a_panel_the_figure_is_empty(tmp_path: Path) -> None:
    draw(tmp_path / "none.png")
    assert painted(tmp_path / "none.png", BLUE) == 0
