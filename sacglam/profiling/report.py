"""A profile in the terminal and in files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sacglam.errors import ProfileError
from sacglam.profiling.phases import look, ordered
from sacglam.profiling.result import Profile
from sacglam.profiling.trace import Timeline, trace
from sacglam.runs.directory import explained
from sacglam.summary import versions


def new_folder(folder: Path) -> Path:
    """Make a folder for a profile.

    Raises:
        ProfileError: there is something in it already.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ProfileError(
            f"expected a new or empty folder for the profile, but {folder} is there; choose another --out"
        )
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def write(folder: Path, profiles: Sequence[Profile], timelines: Sequence[Timeline]) -> None:
    """`profile.json`, `trace.json` and `profile.png` in `folder`."""
    from sacglam.profiling.chart import draw_profile

    found = {"profiles": [profile.to_json() for profile in profiles], "versions": versions()}
    _write_json(folder / "profile.json", found, indent=2)
    _write_json(folder / "trace.json", trace(timelines), indent=None)
    draw_profile(profiles, folder / "profile.png")


def _write_json(file: Path, content: dict[str, Any], indent: int | None) -> None:
    with explained(file):
        file.write_text(json.dumps(content, indent=indent) + "\n")


def show(console: Console, profiles: Sequence[Profile]) -> None:
    """The phases of all profiles side by side, and what was done in that time."""
    console.print(_phases(profiles))
    for profile in profiles:
        if profile.learner_seconds:
            console.print(_learner_phases(profile))
    console.print(_figures(profiles))


def _phases(profiles: Sequence[Profile]) -> Table:
    table = Table("phase", title="Where the time goes")
    for profile in profiles:
        heading = f"{escape(profile.label)}\n"
        for column in (f"{heading}seconds", "\nshare", "\nms/step", "\nms/update"):
            table.add_column(column, justify="right")
    for name in ordered(name for profile in profiles for name in profile.seconds):
        cells = [cell for profile in profiles for cell in _cells(profile, profile.seconds.get(name))]
        table.add_row(escape(look(name).title), *cells)
    table.add_section()
    table.add_row("[bold]all", *(cell for profile in profiles for cell in _cells(profile, profile.wall_seconds)))
    return table


def _cells(profile: Profile, seconds: float | None) -> list[str]:
    if seconds is None:
        return ["", "", "", ""]
    per_step, per_update = 1e3 * seconds / profile.env_steps, 1e3 * seconds / profile.updates
    return [f"{seconds:.2f}", f"{seconds / profile.wall_seconds:.1%}", f"{per_step:.2f}", f"{per_update:.2f}"]


def _learner_phases(profile: Profile) -> Table:
    title = f"{escape(profile.label)}: the first learner rank, on its own clock beside the loop's"
    table = Table("phase", "seconds", "of the loop's time", title=title)
    for name, seconds in profile.learner_seconds.items():
        table.add_row(escape(look(name).title), f"{seconds:.2f}", f"{seconds / profile.wall_seconds:.1%}")
    return table


def _figures(profiles: Sequence[Profile]) -> Table:
    table = Table("", *(escape(profile.label) for profile in profiles), title="What was done in it")
    for column in table.columns[1:]:
        column.justify = "right"
    for title, figure in _FIGURES:
        table.add_row(title, *map(figure, profiles))
    return table


def _flop(count: float) -> str:
    """With the unit that fits: the built-in model takes millions where others take billions."""
    unit = next((unit for unit in ("M", "G") if count < 1000 * _UNITS[unit]), "T")
    return f"{count / _UNITS[unit]:.3g} {unit}FLOP"


_UNITS = {"M": 1e6, "G": 1e9, "T": 1e12}


def _tokens(profile: Profile) -> str:
    total = profile.total()
    return f"{total.tokens / profile.wall_seconds:,.0f}" if total else "-"


def _padding(profile: Profile) -> str:
    total = profile.total()
    return f"{1 - total.tokens / total.tokens_computed:.1%}" if total else "-"


def _flop_rate(profile: Profile) -> str:
    total = profile.total()
    return _flop(total.flop / profile.wall_seconds) if total else "-"


def _matmul_rate(profile: Profile) -> str:
    return _flop(profile.floor.matmul_rate) if profile.floor else "-"


def _state(profile: Profile) -> str:
    return _flop(profile.floor.state_flop) if profile.floor else "-"


def _forwards(profile: Profile) -> str:
    return f"{profile.floor.forwards:g} F" if profile.floor else "-"


def _floor(profile: Profile) -> str:
    return f"{1e3 * profile.floor.seconds:.3g}" if profile.floor else "-"


def _share(profile: Profile) -> str:
    share = profile.floor_share()
    return "-" if share is None else f"{share:.1%}"


_FIGURES: Sequence[tuple[str, Callable[[Profile], str]]] = (
    ("intervals measured (left out before)", lambda p: f"{p.intervals} ({p.warm_up_intervals})"),
    ("environment steps, updates", lambda p: f"{p.env_steps:,}, {p.updates:,}"),
    ("environment steps a second", lambda p: f"{p.env_steps / p.wall_seconds:.3g}"),
    ("updates a second", lambda p: f"{p.updates / p.wall_seconds:.3g}"),
    ("tokens a second", _tokens),
    ("padding among the computed tokens", _padding),
    ("model, a second", _flop_rate),
    ("this machine's matrix products, a second", _matmul_rate),
    ("F: scoring one state", _state),
    ("floor of an environment step", _forwards),
    ("floor of an environment step, ms", _floor),
    ("share of the floor in the time taken", _share),
)
