"""`profile.png`: a bar of stacked phases for each profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sacglam.runs.directory import explained
from sacglam.tools.profile.phases import look, ordered
from sacglam.tools.profile.result import Profile

_LEAST_LABELLED = 0.04  # of the highest bar: a smaller part has no room for its figure


def draw_profile(profiles: Sequence[Profile], file: Path) -> None:
    """Milliseconds of an environment step, with the floor across each bar, and the shares of the time."""
    figure = Figure(figsize=(6 + 2.2 * len(profiles), 5.2), layout="constrained")
    absolute, shares = figure.subplots(1, 2)
    per_step = [1e3 / profile.env_steps for profile in profiles]
    _stack(absolute, profiles, per_step)
    _stack(shares, profiles, [100 / profile.wall_seconds for profile in profiles])
    _mark_floors(absolute, profiles)
    absolute.set_title("ms per environment step")
    shares.set_title("share of the time, %")
    shares.set_ylim(0, 100)
    handles, labels = absolute.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right upper", fontsize="small")
    with explained(file):
        figure.savefig(file, dpi=120)


def _stack(axes: Axes, profiles: Sequence[Profile], scales: Sequence[float]) -> None:
    bottoms = [0.0] * len(profiles)
    highest = max(profile.wall_seconds * scale for profile, scale in zip(profiles, scales, strict=True))
    for name in ordered(name for profile in profiles for name in profile.seconds):
        heights = [p.seconds.get(name, 0.0) * scale for p, scale in zip(profiles, scales, strict=True)]
        bars = axes.bar(range(len(profiles)), heights, 0.6, bottoms, color=look(name).colour, label=look(name).title)
        shown = [f"{height:.3g}" if height >= _LEAST_LABELLED * highest else "" for height in heights]
        colour = "white" if look(name).dark else "black"
        axes.bar_label(bars, shown, label_type="center", fontsize="small", color=colour)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    axes.set_xticks(range(len(profiles)), [f"{p.label}\n({p.algorithm}, {p.device})" for p in profiles])
    axes.set_xlim(-0.6, len(profiles) - 0.4)


def _mark_floors(axes: Axes, profiles: Sequence[Profile]) -> None:
    label = "floor: matrix products alone"
    for place, profile in enumerate(profiles):
        if profile.floor:
            height = 1e3 * profile.floor.seconds
            axes.hlines(height, place - 0.4, place + 0.4, color="black", linestyle="--", label=label)
            label = "_"  # one entry in the legend
