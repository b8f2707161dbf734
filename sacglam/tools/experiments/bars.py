"""Shares as bars."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure


def draw_bars(shares: Mapping[str, float], title: str, y: str, file: Path) -> None:
    """Draw one bar for each name, with its percentage above it.

    Raises:
        OSError: the file cannot be written.
    """
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = figure.subplots()
    bars = axes.bar([name.replace("_", " ") for name in shares], list(shares.values()), color="#0072B2")
    axes.bar_label(bars, labels=[f"{share:.1%}" for share in shares.values()])
    axes.set_title(title)
    axes.set_ylabel(y)
    axes.set_ylim(0, 1)
    axes.grid(axis="y", alpha=0.25)
    figure.savefig(file, dpi=120)
