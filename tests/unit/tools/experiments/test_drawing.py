"""Pictures hold what they are given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.image import imread

from sacglam.tools.experiments.bars import draw_bars
from sacglam.tools.experiments.panels import Line, Panel, draw

BLUE = (0x00 / 255, 0x72 / 255, 0xB2 / 255)


def painted(file: Path, colour: tuple[float, float, float]) -> int:
    """Pixels of a colour."""
    return int((np.abs(imread(file)[..., :3] - colour).max(axis=-1) < 0.01).sum())


def panel(title: str, *labels: str) -> Panel:
    lines = []
    for index, label in enumerate(labels):
        ends = [1 - index / 2, 0.8 - index / 2]
        seeds = [([0, 1], [0, end]) for end in ends]
        lines.append(Line(label, seeds, ([0, 1], [0, sum(ends) / 2]), [0, 0.1], 2))
    return Panel(title, "steps", "success", lines, {"random policy": 0.3})


def test_three_panels_take_two_rows(tmp_path: Path) -> None:
    one, three = tmp_path / "one.png", tmp_path / "three.png"
    draw([panel("a", "x")], "title", one)
    draw([panel(name, "x", "y") for name in "abc"], "title", three)
    assert imread(three).shape[0] > 1.8 * imread(one).shape[0]
    assert imread(three).shape[1] == 2 * imread(one).shape[1]
    assert painted(three, BLUE) > 2.5 * painted(one, BLUE)


def test_a_label_keeps_its_colour_where_another_comes_first(tmp_path: Path) -> None:
    draw([panel("a", "x", "y"), panel("b", "y")], "title", tmp_path / "both.png")
    width = imread(tmp_path / "both.png").shape[1]
    right = imread(tmp_path / "both.png")[:, width // 2 :, :3]
    assert (np.abs(right - BLUE).max(axis=-1) < 0.01).sum() == 0


def test_bars_are_as_high_as_their_shares(tmp_path: Path) -> None:
    draw_bars({"half": 0.5}, "title", "share", tmp_path / "half.png")
    draw_bars({"all": 1.0}, "title", "share", tmp_path / "all.png")
    half, whole = (painted(tmp_path / f"{name}.png", BLUE) for name in ("half", "all"))
    assert 0.45 < half / whole < 0.55
