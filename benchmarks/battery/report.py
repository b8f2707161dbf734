"""The battery's rows as one table and one figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

Row = Mapping[str, Any]
_MARKS = (("#D55E00", "s"), ("#009E73", "D"), ("#CC79A7", "^"), ("#E69F00", "v"))


def markdown(rows: Sequence[Row]) -> str:
    """One line for each environment; for several seeds, the mean and the lowest."""
    labels = list(dict.fromkeys(label for row in rows for label in row["runs"]))
    measured = ["greedy", "sampled"]
    head = ["Environment", "half", "steps", "fewest steps", "random", "table", "optimum"]
    head += [f"{label}, {kind}" for label in labels for kind in measured]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        base = row["baselines"]
        line = [f"`{row['name']}`", row["half"], f"{base['steps']:,}", f"{base['fewest_steps']:.1f}"]
        line += [f"{base['random']:.2f}", _seeds(base["table"]), f"{base['optimum']:.2f}"]
        lines.append(
            [*line, *(_seeds(row["runs"].get(label, {}).get(kind, [])) for label in labels for kind in measured)]
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _seeds(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f} ({min(values):.2f})" if values else "-"


def draw(rows: Sequence[Row], file: Path) -> None:
    """One line for each environment, with the success of each policy, and that of each seed in a paler colour."""
    figure = Figure(figsize=(8, 0.8 + 0.34 * len(rows)), layout="constrained")
    axes = figure.subplots()
    labels = list(dict.fromkeys(label for row in rows for label in row["runs"]))
    series = {"table": ("#0072B2", "o", [row["baselines"]["table"] for row in rows])}
    for label, (colour, marker) in zip(labels, _MARKS, strict=False):
        series[label] = (colour, marker, [row["runs"].get(label, {}).get("greedy", []) for row in rows])
    axes.plot(
        [row["baselines"]["random"] for row in rows], range(len(rows)), "x", color="dimgrey", label="random policy"
    )
    axes.plot(
        [row["baselines"]["optimum"] for row in rows], range(len(rows)), "|", color="black", ms=14, label="optimum"
    )
    for label, (colour, marker, values) in series.items():
        known = [(y, each) for y, each in enumerate(values) if each]
        for y, each in known:
            axes.plot(each, [y] * len(each), marker, color=colour, alpha=0.3, markersize=4)
        axes.plot([fmean(each) for _, each in known], [y for y, _ in known], marker, color=colour, label=label)
    chosen = sum(row["half"] == "choosing" for row in rows)
    axes.axhline(chosen - 0.5, color="dimgrey", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row["name"].replace("_", " ") for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set(
        xlabel="success on fresh episodes; above the line for choosing settings, below for reporting",
        xlim=(-0.03, 1.03),
    )
    axes.grid(alpha=0.25)
    figure.legend(loc="outside upper center", ncols=3 + len(labels), frameon=False)
    figure.savefig(file, dpi=120)
