"""Draws docs/images/partners.svg from docs/results/partners/runs.json: success with partners that may be wrong."""

import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

DOCS = Path(__file__).parent
INK = "#1f2933"
COLOURS = {
    "environment": "#2b6cb0",
    "judge": "#2f855a",
    "false positives": "#c05621",
    "false negatives": "#805ad5",
    "no hindsight": "#66727f",
}


def draw() -> Figure:
    """Success in training over steps, a line for each run; greedy success after it, a bar for the mean over seeds."""
    by_label = defaultdict[str, list[dict[str, Any]]](list)
    for run in json.loads((DOCS / "results" / "partners" / "runs.json").read_text()):
        by_label[run["label"]].append(run)
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for place, runs in enumerate(reversed(by_label.values())):
        first = runs[0]
        look = {"color": COLOURS[first["partner"]], "alpha": 0.45 if 0 < first["rate"] < 0.2 else 1.0}
        after = [run["success_after"] for run in runs]
        for run in runs:
            left.plot(*zip(*run["success_in_training"], strict=True), **look)
        right.barh(place, fmean(after), **look)
        right.plot(after, [place] * len(runs), "|", color=INK)
        right.annotate(f"{fmean(after):.2f}", (max(after), place), (6, -3), textcoords="offset points")
    labels = [f"{label}, {len(runs)} seed{'s' * (len(runs) > 1)}" for label, runs in by_label.items()]
    right.set_yticks(range(len(labels)), labels[::-1])
    left.set(xlim=(0, 1920), ylim=(0, 1), xlabel="environment steps", ylabel="success in training")
    right.set(xlim=(0, 1.1), xlabel="greedy success on fresh episodes, after training")
    left.set_title("the last 200 episodes, as the environment sees them", fontsize=10, color=INK)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "sacglam", "font.family": "DejaVu Sans"}):
        FigureCanvasSVG(draw()).print_svg(DOCS / "images" / "partners.svg", metadata={"Date": None})
