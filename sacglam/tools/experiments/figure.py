"""The figure of a report, from the values of `report.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sacglam.tools.experiments.panels import Line, Panel, draw
from sacglam.tools.experiments.results import OVERALL
from sacglam.tools.experiments.statistics import band

_X = {"steps": "environment steps", "seconds": "seconds of training, without evaluation"}
_SECONDS_GRID, _MOST_MARKS = 200, 16


def draw_report(report: Mapping[str, Any], file: Path) -> None:
    """Draw one panel for each group and axis.

    Raises:
        RunDirectoryError: the file cannot be written.
    """
    panels = [_panel(group, axis) for group in report["groups"] for axis in group["axes"]]
    seeds = max((len(m["seeds"]) for group in report["groups"] for m in group["members"]), default=0)
    spread = f"mean and standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    draw(panels, f"{report['title']}: {spread}", file)


def _panel(group: Mapping[str, Any], axis: str) -> Panel:
    members = [member for member in group["members"] if member["curves"]]
    metric = group["metric"]
    random = [member["random"][OVERALL]["mean"] for member in members if metric is None]
    return Panel(
        title=group["title"],
        x=_X[axis],
        y="success (greedy, fresh episodes)" if metric is None else metric.replace("_", " "),
        lines=[_line(member, metric or OVERALL, axis) for member in members],
        levels={"random policy": float(np.mean(random))} if random else {},
        unit_range=metric is None or "share" in metric,
    )


def _line(member: Mapping[str, Any], name: str, axis: str) -> Line:
    """Over steps the seeds were measured at the same points; over seconds each has its own, up to its own end."""
    seeds = [(curves[name][axis], curves[name]["values"]) for curves in member["curves"].values()]
    if axis == "steps":
        grid = sorted(set.intersection(*(set(x) for x, _ in seeds)))
    else:
        grid = np.linspace(0.0, min(x[-1] for x, _ in seeds), _SECONDS_GRID).tolist()
    mean, std = band(seeds, grid)
    return Line(member["label"], seeds, (grid, mean), std, min(_MOST_MARKS, len(seeds[0][0])))
