"""Draws docs/images/learning_curve.svg from docs/results/quickstart/report.json, which `sacglam compare` wrote."""

import json
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

DOCS = Path(__file__).parent
BLUE, INK, FAINT = "#2b6cb0", "#1f2933", "#66727f"


def draw() -> Figure:
    """Greedy success over environment steps: a thin line for each seed, a thick one for their mean."""
    [group] = json.loads((DOCS / "results" / "quickstart" / "report.json").read_text())["groups"]
    [member] = group["members"]
    curves = [seed["overall"] for seed in member["curves"].values()]
    steps = curves[0]["steps"]
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    axes = figure.subplots()
    for curve in curves:
        axes.plot(steps, curve["values"], color=BLUE, alpha=0.35, linewidth=1)
    axes.plot(steps, np.mean([curve["values"] for curve in curves], axis=0), color=BLUE, linewidth=2.5)
    random = member["random"]["overall"]["mean"]
    axes.axhline(random, color=FAINT, linestyle="--", linewidth=1)
    axes.annotate("random policy", (steps[-1], random), (0, 4), textcoords="offset points", ha="right", color=FAINT)
    axes.set(xlim=(0, steps[-1]), ylim=(0, 1), xlabel="environment steps", ylabel="success on fresh episodes")
    axes.set_title("Playground-Text's simple game, a 270,000-parameter model, four seeds", fontsize=10, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "sacglam", "font.family": "DejaVu Sans"}):
        FigureCanvasSVG(draw()).print_svg(DOCS / "images" / "learning_curve.svg", metadata={"Date": None})
