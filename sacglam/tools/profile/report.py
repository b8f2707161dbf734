"""A profile in the terminal and in files: tables, `profile.json` and `trace.json`."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sacglam import files
from sacglam.errors import write_explained
from sacglam.runs.summary import versions
from sacglam.tools.profile.measure import Profile
from sacglam.tools.profile.phases import TITLES, Event, ordered


def write(folder: Path, profiles: Sequence[Profile], events: Mapping[str, Sequence[Event]]) -> None:
    """Write `profile.json` and `trace.json` (of the events by label) to `folder`, which is created if missing."""
    values = {"profiles": [asdict(profile) for profile in profiles], "versions": versions()}
    with write_explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        files.write(folder / "profile.json", json.dumps(values, indent=2) + "\n")
        files.write(folder / "trace.json", json.dumps(trace(events)) + "\n")


def trace(events: Mapping[str, Sequence[Event]]) -> dict[str, Any]:
    """The Trace Event Format, which Perfetto opens: a process for each label, whose first event is at 0."""
    found: list[Event] = []
    for pid, (label, own) in enumerate(events.items(), start=1):
        thread, origin = {"pid": pid, "tid": 1}, min(event["ts"] for event in own)
        found.append({"ph": "M", "name": "process_name", "args": {"name": label}, **thread})
        found += [{**event, "ts": event["ts"] - origin, **thread} for event in own]
    return {"displayTimeUnit": "ms", "traceEvents": found}


def show(console: Console, profiles: Sequence[Profile]) -> None:
    """Print the phases of all profiles side by side, and what was done in that time."""
    headers = f"{'share':>7}{'ms/step':>8}{'ms/update':>10}"
    columns = [(f"{escape(p.label)}\n{headers}", p.seconds, partial(_figures, p)) for p in profiles]
    console.print(phase_table("Where the time goes", columns))
    for profile in profiles:
        if profile.rank_seconds_per_update:
            console.print(_rank_phases(profile))
    console.print(_work(profiles))


def phase_table(title: str, columns: Sequence[tuple[str, Mapping[str, float], Callable[[float], str]]]) -> Table:
    """A row for each phase and one for all; a column is its header, seconds by phase, and how to print them."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("phase", no_wrap=True, vertical="bottom")
    for header, _, _ in columns:
        table.add_column(header, justify="right", no_wrap=True)
    for name in ordered(name for _, seconds, _ in columns for name in seconds):
        table.add_row(escape(TITLES.get(name, name)), *(show(seconds.get(name, 0.0)) for _, seconds, show in columns))
    table.add_section()
    table.add_row("[bold]all", *(show(sum(seconds.values())) for _, seconds, show in columns))
    return table


def _figures(profile: Profile, seconds: float) -> str:
    share, step, update = seconds / profile.wall_seconds, seconds / profile.env_steps, seconds / profile.updates
    return f"{share:7.1%}{1e3 * step:8.2f}{1e3 * update:10.2f}"


def _rank_phases(profile: Profile) -> Table:
    """The first learner rank's phases, on its own clock."""
    seconds = profile.rank_seconds_per_update
    total = sum(seconds.values())
    columns = [("share", seconds, lambda s: f"{s / total:.1%}"), ("ms/update", seconds, lambda s: f"{1e3 * s:.2f}")]
    return phase_table(f"{escape(profile.label)}: first learner rank", columns)


def _work(profiles: Sequence[Profile]) -> Table:
    rows = {
        "intervals measured (left out before)": lambda p: f"{p.intervals} ({p.warm_up_intervals})",
        "environment steps, updates": lambda p: f"{p.env_steps:,}, {p.updates:,}",
        "CPU cores kept busy by this process": lambda p: f"{p.cpu_seconds / p.wall_seconds:.2f}",
        "environment steps per second": lambda p: f"{p.env_steps / p.wall_seconds:.3g}",
        "updates per second": lambda p: f"{p.updates / p.wall_seconds:.3g}",
    }
    table = Table("", title="Work done", title_justify="left", box=box.SIMPLE_HEAD)
    for profile in profiles:
        table.add_column(escape(profile.label), justify="right")
    for title, show in rows.items():
        table.add_row(title, *map(show, profiles))
    return table
