"""A profile in the terminal and in files: tables, `profile.json` and `trace.json`."""

import json
from collections.abc import Mapping, Sequence
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
from sacglam.tools.profile.phases import Event
from sacglam.tools.profile.result import Profile
from sacglam.tools.profile.table import phase_table


def write(folder: Path, profiles: Sequence[Profile], events: Mapping[str, Sequence[Event]]) -> None:
    """Write `profile.json` and `trace.json` (of the events by label) to `folder`, which is created."""
    values = {"profiles": [profile.to_json() for profile in profiles], "versions": versions()}
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
    if not all(profile.work for profile in profiles):
        console.print("Tokens and FLOP are counted only if one process does everything.")


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
    table = Table("", title="What was done in it", title_justify="left", box=box.SIMPLE_HEAD)
    for profile in profiles:
        table.add_column(escape(profile.label), justify="right")
    columns = [_rates(profile) for profile in profiles]
    for title in dict.fromkeys(title for column in columns for title in column):
        table.add_row(title, *(column.get(title, "-") for column in columns))
    return table


def _rates(profile: Profile) -> dict[str, str]:
    """Figures by title; those of the model only if it is in this process."""
    wall, work = profile.wall_seconds, profile.work
    found = {
        "intervals measured (left out before)": f"{profile.intervals} ({profile.warm_up_intervals})",
        "environment steps, updates": f"{profile.env_steps:,}, {profile.updates:,}",
        "CPU cores kept busy by this process": f"{profile.cpu_seconds / wall:.2f}",
        "environment steps per second": f"{profile.env_steps / wall:.3g}",
        "updates per second": f"{profile.updates / wall:.3g}",
    }
    if work and profile.matmul_rate:
        found |= {
            "tokens per second": f"{work.tokens / wall:,.0f}",
            "padding among the computed tokens": f"{1 - work.tokens / work.tokens_computed:.1%}",
            "model, per second": _flop(work.flop / wall),
            "this machine's matrix products, per second": _flop(profile.matmul_rate),
            "utilisation": f"{profile.utilisation():.1%}",
        }
    return found


def _flop(count: float) -> str:
    unit, size = next(((unit, size) for unit, size in (("M", 1e6), ("G", 1e9)) if count < 1000 * size), ("T", 1e12))
    return f"{count / size:.3g} {unit}FLOP"
