"""A profile in the terminal and in files: tables, `profile.json`, `trace.json` and `profile.png`."""

import json
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from sacglam import files
from sacglam.errors import write_explained
from sacglam.runs.summary import versions
from sacglam.tools.profile.phases import Timeline, look, ordered, trace
from sacglam.tools.profile.result import Profile

_LEAST_LABELLED = 0.04  # of the highest bar: a smaller part has no room for its figure
_UNITS = {"M": 1e6, "G": 1e9, "T": 1e12}


def write(folder: Path, profiles: Sequence[Profile], timelines: Sequence[Timeline]) -> None:
    """`profile.json`, `trace.json` and `profile.png` in `folder`, which is made."""
    with write_explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    found = {"profiles": [profile.to_json() for profile in profiles], "versions": versions()}
    texts = {"profile.json": json.dumps(found, indent=2), "trace.json": json.dumps(trace(timelines))}
    for name, text in texts.items():
        with write_explained(folder / name):
            files.write(folder / name, text + "\n")
    _draw(profiles, folder / "profile.png")


def _draw(profiles: Sequence[Profile], file: Path) -> None:
    """A bar of stacked phases for each profile: milliseconds of an environment step with the floor, and shares."""
    figure = Figure(figsize=(6 + 2.2 * len(profiles), 5.2), layout="constrained")
    absolute, shares = figure.subplots(1, 2)
    _stack(absolute, profiles, [1e3 / profile.env_steps for profile in profiles])
    _stack(shares, profiles, [100 / profile.wall_seconds for profile in profiles])
    label = "floor: matrix products alone"
    for place, profile in enumerate(profiles):
        if profile.floor:
            height = 1e3 * profile.floor.seconds
            absolute.hlines(height, place - 0.4, place + 0.4, color="black", linestyle="--", label=label)
            label = "_"  # one entry in the legend
    absolute.set_title("ms per environment step")
    shares.set_title("share of the time, %")
    shares.set_ylim(0, 100)
    handles, labels = absolute.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right upper", fontsize="small")
    with write_explained(file), files.replacing(file) as target:
        figure.savefig(target, format="png", dpi=120)


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


def show(console: Console, profiles: Sequence[Profile]) -> None:
    """The phases of all profiles side by side, and what was done in that time."""
    console.print(_phases(profiles))
    for profile in profiles:
        if profile.rank_seconds_per_update:
            console.print(_rank_phases(profile))
    console.print(_work(profiles))
    if not all(profile.floor for profile in profiles):
        console.print("Tokens, FLOP and floor are counted where one process does everything.")


def _phases(profiles: Sequence[Profile]) -> Table:
    """One column for each profile, with the same figures in it."""
    alone = len(profiles) == 1
    table = Table(Column("\nphase", no_wrap=True), title="Where the time goes", box=box.SIMPLE_HEAD)
    titles = _line(["seconds", "share", "ms/step", "ms/update"], alone)
    for profile in profiles:
        table.add_column(f"{escape(profile.label)}\n{titles}", justify="right", no_wrap=True)
    for name in ordered(name for profile in profiles for name in profile.seconds):
        figures = (_of_phase(profile, profile.seconds.get(name, 0.0), alone) for profile in profiles)
        table.add_row(escape(look(name).title), *figures)
    table.add_section()
    table.add_row("[bold]all", *(_of_phase(profile, profile.wall_seconds, alone) for profile in profiles))
    return table


def _of_phase(profile: Profile, seconds: float, alone: bool) -> str:
    share, per_step = f"{seconds / profile.wall_seconds:.1%}", f"{1e3 * seconds / profile.env_steps:.2f}"
    return _line([f"{seconds:.2f}", share, per_step, f"{1e3 * seconds / profile.updates:.2f}"], alone)


def _line(cells: Sequence[str], alone: bool) -> str:
    """Cells in columns; next to another profile there is no room for the first one."""
    widths = (8, 7, 8, 10)
    padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
    return "".join(padded if alone else padded[1:])


def _rank_phases(profile: Profile) -> Table:
    """The first learner rank's phases, on its own clock."""
    table = Table("phase", title=f"{escape(profile.label)}: first learner rank", box=box.SIMPLE_HEAD)
    table.add_column("share", justify="right")
    table.add_column("ms/update", justify="right")
    total = sum(profile.rank_seconds_per_update.values())
    for name, seconds in profile.rank_seconds_per_update.items():
        table.add_row(escape(look(name).title), f"{seconds / total:.1%}", f"{1e3 * seconds:.2f}")
    return table


def _work(profiles: Sequence[Profile]) -> Table:
    table = Table("", title="What was done in it", box=box.SIMPLE_HEAD)
    for profile in profiles:
        table.add_column(escape(profile.label), justify="right")
    columns = [_figures(profile) for profile in profiles]
    for title in max(columns, key=len):  # where the model is elsewhere, only the last rows are missing
        table.add_row(title, *(column.get(title, "-") for column in columns))
    return table


def _figures(profile: Profile) -> dict[str, str]:
    """By title; those of the model where it is in this process."""
    wall, total, floor = profile.wall_seconds, profile.total(), profile.floor
    found = {
        "intervals measured (left out before)": f"{profile.intervals} ({profile.warm_up_intervals})",
        "environment steps, updates": f"{profile.env_steps:,}, {profile.updates:,}",
        "CPU cores kept busy by this process": f"{profile.cpu_seconds / wall:.2f}",
        "environment steps a second": f"{profile.env_steps / wall:.3g}",
        "updates a second": f"{profile.updates / wall:.3g}",
    }
    if total and floor:
        found |= {
            "tokens a second": f"{total.tokens / wall:,.0f}",
            "padding among the computed tokens": f"{1 - total.tokens / total.tokens_computed:.1%}",
            "model, a second": _flop(total.flop / wall),
            "this machine's matrix products, a second": _flop(floor.matmul_rate),
            "F: scoring one state": _flop(floor.state_flop),
            "floor of an environment step": f"{floor.forwards:g} F",
            "floor of an environment step, ms": f"{1e3 * floor.seconds:.3g}",
            "share of the floor in the time taken": f"{profile.floor_share():.1%}",
        }
    return found


def _flop(count: float) -> str:
    """With the unit that fits: the built-in model takes millions where others take billions."""
    unit = next((unit for unit in ("M", "G") if count < 1000 * _UNITS[unit]), "T")
    return f"{count / _UNITS[unit]:.3g} {unit}FLOP"
