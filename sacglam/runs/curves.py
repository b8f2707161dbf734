"""`curves.png`: a run's metrics on one page."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sacglam import files
from sacglam.errors import write_explained
from sacglam.runs.directory import EVALUATED, RunDirectory

_PANELS: Mapping[str, Mapping[str, str]] = {
    "success": {"success": "training (sampled)", "eval_success/overall": "evaluation (greedy)"},
    "return": {"episode_return": "training (sampled)", "eval_return": "evaluation (greedy)"},
    "entropy [nats]": {"entropy": ""},
    "alpha": {"alpha": ""},
    "Q and target": {"q": "q", "target": "target"},
    "critic loss": {"critic_loss": ""},
    "share of relabelled transitions": {
        "buffer_hindsight_share": "in the buffer",
        "batch_hindsight_share": "in the batch",
    },
    "value and return": {"value": "value", "return": "return"},
    "policy loss": {"policy_loss": ""},
    "value loss": {"value_loss": ""},
    "share of clipped samples": {"clipped_share": ""},
}
"""Titles of panels, and the metrics drawn in each with their labels."""
_AXES = {"env_steps": "environment steps", "updates": "updates"}


def draw_curves(directory: RunDirectory) -> None:
    """Plot logged metrics over environment steps; mark success before and after training, and the random policy's.

    Initial updates, which take no steps, are left out, but a run without any steps is plotted over its updates.
    """
    lines, figure = directory.metrics(), Figure(figsize=(12, 6.5), layout="constrained")
    x = "env_steps" if any(line["env_steps"] for line in lines) else "updates"
    lines = [line for line in lines if line.get(x) or EVALUATED in line]
    logged = {name for line in lines for name in line}
    panels = {title: names for title, names in _PANELS.items() if title == "success" or logged & names.keys()}
    columns = -(-len(panels) // 2)
    for number, (title, names) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(2, columns, number)
        for name, label in names.items():
            if drawn := [(line.get(x, 0), line[name]) for line in lines if name in line]:
                axes.plot(*zip(*drawn, strict=True), label=label)
        axes.set(title=title, xlabel=_AXES[x])
        axes.grid(alpha=0.3)
        if title == "success":
            _mark_evaluations(axes, x, directory.summary() or {})
        if len(names) > 1 and axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small")
    with write_explained(directory.curves), files.replacing(directory.curves) as file:
        figure.savefig(file, format="png", dpi=110)


def _mark_evaluations(axes: Axes, x: str, summary: dict[str, Any]) -> None:
    axes.set_ylim(-0.02, 1.02)
    if random := summary.get("success_random"):
        axes.axhline(random["overall"], color="grey", linestyle=":", label="random policy")
    ends = [(0, summary.get("success_before")), (summary.get(x), summary.get("success_after"))]
    if evaluated := [(step, success["overall"]) for step, success in ends if success]:
        label = "before and after (greedy)"
        axes.plot(*zip(*evaluated, strict=True), "o", color="black", markersize=5, label=label)
