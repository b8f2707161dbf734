"""The figure of a report: its curves."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sacglam import files
from sacglam.tools.experiments.results import OVERALL, Curve
from sacglam.tools.experiments.statistics import band

# Okabe and Ito's colours are distinct with any common form of colour blindness, the markers even without colour.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
_MARKERS = "osD^vP*X"
_X = {
    "steps": "environment steps",
    "seconds": "seconds of training, without evaluation",
    "cpu_seconds": "CPU seconds of training, all processes",
    "forward_passes": "forward passes of a state, at least",
}
_COLUMNS, _GRID, _MOST_MARKS, _DPI = 2, 200, 16, 120

Values = Mapping[str, Any]


def draw_report(report: Values, file: Path) -> None:
    """Draw a panel for each group and axis, from the values of `report.json`: two in a row, one colour per label."""
    panels = [(group, axis) for group in report["groups"] for axis in group["axes"]]
    drawn = [member for group in report["groups"] for member in group["members"] if member["curves"]]
    styles = {label: i for i, label in enumerate(dict.fromkeys(member["label"] for member in drawn))}
    seeds = sorted({len(member["seeds"]) for member in drawn})
    columns = max(1, min(_COLUMNS, len(panels)))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.6 * columns, 4.1 * rows + 0.3), layout="constrained")
    numbers = " or ".join(map(str, seeds))
    spread = "one seed" if seeds in ([], [1]) else f"mean and standard deviation over {numbers} seeds"
    figure.suptitle(f"{report['title']}: {spread}")
    for i, (group, axis) in enumerate(panels):
        axes = figure.add_subplot(rows, columns, i + 1)
        members = {member["label"]: member for member in group["members"] if member["curves"]}
        _draw_curves(axes, members, group["metric"], axis, styles)
        axes.set_title(group["title"], fontsize="medium")
        axes.set_xlabel(_X[axis])
        axes.grid(alpha=0.25)
        if axes.lines:
            axes.legend(fontsize="small", loc="best")
    with files.replacing(file) as target:
        figure.savefig(target, format="png", dpi=_DPI)


def _draw_curves(
    axes: Axes, members: Mapping[str, Values], metric: str | None, axis: str, styles: Mapping[str, int]
) -> None:
    for label, member in members.items():
        seeds = [curves[metric or OVERALL] for curves in member["curves"].values()]
        if all(seed.get(axis) for seed in seeds):  # older runs lack CPU seconds, short ones some metrics
            _draw_seeds(axes, seeds, axis, label, styles[label])
    if members and metric is None:
        level = float(np.mean([member["random"][OVERALL].mean for member in members.values()]))
        axes.axhline(level, color="dimgrey", linestyle=":", linewidth=1.4, label="random policy")
    axes.set_ylabel("success (greedy, fresh episodes)" if metric is None else metric.replace("_", " "))
    axes.set_xlim(left=0)
    if metric is None or "share" in metric or "success" in metric:
        axes.set_ylim(-0.02, 1.02)


def _draw_seeds(axes: Axes, curves: list[Curve], axis: str, label: str, style: int) -> None:
    """The mean as a line, the standard deviation as a band, and each seed as a thin line.

    Over steps, all seeds were evaluated at the same points; over other axes, each has its own points and end.
    """
    seeds = [(curve[axis], curve["values"]) for curve in curves]
    if axis == "steps":
        grid = sorted(set.intersection(*(set(x) for x, _ in seeds)))
    else:
        grid = np.linspace(0.0, min(x[-1] for x, _ in seeds), _GRID).tolist()
    mean, std = band(seeds, grid)
    colour, marker = _COLOURS[style % len(_COLOURS)], _MARKERS[(style + style // len(_COLOURS)) % len(_MARKERS)]
    if len(seeds) > 1:
        for x, y in seeds:
            axes.plot(x, y, color=colour, linewidth=0.7, alpha=0.35)
        axes.fill_between(grid, mean - std, mean + std, color=colour, alpha=0.16, linewidth=0)
    every = max(1, len(grid) // min(_MOST_MARKS, len(seeds[0][0])))
    axes.plot(grid, mean, color=colour, marker=marker, markersize=4.5, markevery=every, linewidth=2, label=label)
