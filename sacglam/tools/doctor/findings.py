"""What a check finds, and what the findings come to: a verdict for each way of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warning", "fault"]
Way = Literal["one", "cpu", "gpu"]
"""A way of training: in one process, with engines and learners on CPU, with them on GPUs."""
ALL: frozenset[Way] = frozenset({"one", "cpu", "gpu"})
ENGINES: frozenset[Way] = frozenset({"cpu", "gpu"})
NOTHING: frozenset[Way] = frozenset()


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was looked at, what came, what it keeps from working, and what mends it."""

    name: str
    level: Level
    came: str
    mend: str | None = None
    blocks: frozenset[Way] = NOTHING


@dataclass(frozen=True)
class Verdict:
    """Whether a way of training works here; if not, the first reason and what mends it."""

    way: Way
    title: str
    works: bool
    reason: str | None = None
    mend: str | None = None


def verdict(way: Way, title: str, findings: Sequence[Finding]) -> Verdict:
    """Works if nothing blocks it; else the first finding that does speaks, so checks come in the order of mending."""
    first = next((finding for finding in findings if way in finding.blocks), None)
    if first is None:
        return Verdict(way, title, True)
    return Verdict(way, title, False, f"{first.name}: {first.came}", first.mend)
