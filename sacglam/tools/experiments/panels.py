"""Panels of curves over seeds: the mean as a line, the standard deviation as a band, each seed as a thin line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sacglam.runs.directory import explained

# Okabe and Ito: told apart with any common form of colour blindness. Markers tell them apart without colour.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
_MARKERS = "osD^vP*X"
_COLUMNS = 2

Points = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Line:
    """One label: the curves of its seeds, their mean and standard deviation, as (x, y); the marks lie on the mean."""

    label: str
    seeds: Sequence[Points]
    mean: Points
    std: Sequence[float]
    marks: int


@dataclass(frozen=True)
class Panel:
    """One pair of axes; `levels` are horizontal lines by name."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    levels: Mapping[str, float]
    unit_range: bool = True


def draw(panels: Sequence[Panel], title: str, file: Path) -> None:
    """Draw `panels` on one page, two in a row; a label has one colour everywhere.

    Raises:
        RunDirectoryError: the file cannot be written.
    """
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.6 * columns, 4.1 * rows + 0.3), layout="constrained")
    figure.suptitle(title)
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    all_axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, panel in zip(all_axes, panels, strict=False):
        _panel(axes, panel, labels)
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    with explained(file):
        figure.savefig(file, dpi=120)


def _panel(axes: Axes, panel: Panel, labels: Sequence[str]) -> None:
    for line in panel.lines:
        index = labels.index(line.label)
        _line(axes, line, _COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)])
    for name, level in panel.levels.items():
        axes.axhline(level, color="dimgrey", linestyle=":", linewidth=1.4, label=name)
    axes.set_title(panel.title, fontsize="medium")
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    axes.set_xlim(left=0)
    if panel.unit_range:
        axes.set_ylim(-0.02, 1.02)
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small", loc="best")


def _line(axes: Axes, line: Line, colour: str, marker: str) -> None:
    for x, y in line.seeds if len(line.seeds) > 1 else ():
        axes.plot(x, y, color=colour, linewidth=0.7, alpha=0.35)
    x, mean = line.mean
    if len(line.seeds) > 1:
        low, high = ([m + sign * s for m, s in zip(mean, line.std, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
    every = max(1, len(x) // line.marks)
    axes.plot(x, mean, color=colour, linewidth=2, marker=marker, markersize=4.5, markevery=every, label=line.label)
