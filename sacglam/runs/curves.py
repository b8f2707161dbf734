"""`curves.png`: a run's metrics on one page."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sacglam import files
from sacglam.errors import write_explained
from sacglam.runs.directory import RunDirectory

_PANELS: Sequence[tuple[str, Sequence[str]]] = (
    ("success", ("success", "eval_success/overall")),
    ("entropy [nats]", ("entropy",)),
    ("alpha", ("alpha",)),
    ("Q and target", ("q", "target")),
    ("critic loss", ("critic_loss",)),
    ("share of relabelled transitions", ("buffer_hindsight_share", "batch_hindsight_share")),
)
_PPO_PANELS: Sequence[tuple[str, Sequence[str]]] = (
    *_PANELS[:2],
    ("value and return", ("value", "return")),
    ("policy loss", ("policy_loss",)),
    ("value loss", ("value_loss",)),
    ("share of clipped samples", ("clipped_share",)),
)
_LABELS = {
    "success": "training (sampled)",
    "eval_success/overall": "evaluation (greedy)",
    "buffer_hindsight_share": "in the buffer",
    "batch_hindsight_share": "in the batch",
}


def draw_curves(directory: RunDirectory) -> None:
    """Plot the run's metrics over environment steps, marking success before, after and of the random policy."""
    lines, summary = directory.metrics(), directory.summary() or {}
    figure = Figure(figsize=(12, 6.5), layout="constrained")
    panels = _PPO_PANELS if any("policy_loss" in line for line in lines) else _PANELS
    for axes, (title, names) in zip(figure.subplots(2, 3).flat, panels, strict=True):
        for name in names:
            _plot(axes, lines, name, _LABELS.get(name, name))
        axes.set(title=title, xlabel="environment steps")
        axes.grid(alpha=0.3)
        if title == "success":
            _mark_evaluations(axes, summary)
        if len(names) > 1 and axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small")
    with write_explained(directory.curves), files.replacing(directory.curves) as file:
        figure.savefig(file, format="png", dpi=110)


def _plot(axes: Axes, lines: Sequence[dict[str, Any]], name: str, label: str) -> None:
    points = [(line["env_steps"], line[name]) for line in lines if name in line]
    if points:
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, label=label)


def _mark_evaluations(axes: Axes, summary: dict[str, Any]) -> None:
    axes.set_ylim(-0.02, 1.02)
    if random := summary.get("success_random"):
        axes.axhline(random["overall"], color="grey", linestyle=":", label="random policy")
    ends = [(0, summary.get("success_before")), (summary.get("env_steps"), summary.get("success_after"))]
    evaluated = [(step, success["overall"]) for step, success in ends if success]
    if evaluated:
        steps, values = zip(*evaluated, strict=True)
        axes.plot(steps, values, "o", color="black", markersize=5, label="before and after (greedy)")
