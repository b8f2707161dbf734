"""Draws docs/images/partners.svg from docs/results/partners/runs.json: success with partners that may be wrong."""

import json
from pathlib import Path

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
    """Success in training over steps, and greedy success after it; a line and a bar for each run."""
    runs = json.loads((DOCS / "results" / "partners" / "runs.json").read_text())
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for place, run in enumerate(reversed(runs)):
        colour = COLOURS[run["partner"]]
        weak = 0.45 if run["partner"].startswith("false") and run["rate"] < 0.1 else 1.0
        steps, values = zip(*run["success_in_training"], strict=True)
        left.plot(steps, values, color=colour, alpha=weak)
        right.barh(place, run["success_after"], color=colour, alpha=weak)
        right.annotate(
            f"{run['success_after']:.2f}", (run["success_after"], place), (3, -3), textcoords="offset points"
        )
    right.set_yticks(range(len(runs)), [f"{run['label']}, seed {run['seed']}" for run in reversed(runs)])
    left.set(xlim=(0, 1920), ylim=(0, 1), xlabel="environment steps", ylabel="success in training")
    right.set(xlim=(0, 1.1), xlabel="greedy success on fresh episodes, after training")
    left.set_title("the last 200 episodes, as the environment sees them", fontsize=10, color=INK)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "sacglam", "font.family": "DejaVu Sans"}):
        FigureCanvasSVG(draw()).print_svg(DOCS / "images" / "partners.svg", metadata={"Date": None})
