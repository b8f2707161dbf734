"""A profile in the terminal and in files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sacglam.errors import ProfileError
from sacglam.runs.directory import explained
from sacglam.runs.summary import versions
from sacglam.tools.profile.chart import draw_profile
from sacglam.tools.profile.phases import look, ordered
from sacglam.tools.profile.result import Profile
from sacglam.tools.profile.trace import Timeline, trace


def vacant(folder: Path) -> Path:
    """A folder for a new profile; touches nothing.

    Raises:
        ProfileError: there is something in it already.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ProfileError(
            f"expected a new or empty folder for the profile, but {folder} is there; choose another --out"
        )
    return folder


def write(folder: Path, profiles: Sequence[Profile], timelines: Sequence[Timeline]) -> None:
    """`profile.json`, `trace.json` and `profile.png` in `folder`, which is made."""
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
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
        if profile.rank_seconds_per_update:
            console.print(_rank_phases(profile))
    console.print(_figures(profiles))
    if not all(profile.floor for profile in profiles):
        console.print("Tokens, FLOP and floor are counted where one process does all (engines.count=0).")


def _phases(profiles: Sequence[Profile]) -> Table:
    """One column for each profile, with the same figures in it."""
    alone = len(profiles) == 1
    table = Table("\nphase", title="Where the time goes", box=box.SIMPLE_HEAD)
    table.columns[0].no_wrap = True
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
    """Cells in columns; beside another profile there is no room for the first one."""
    widths = (8, 7, 8, 10)
    padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
    return "".join(padded if alone else padded[1:])


def _rank_phases(profile: Profile) -> Table:
    """The first learner rank's phases, on its own clock beside the loop's."""
    table = Table("phase", title=f"{escape(profile.label)}: first learner rank", box=box.SIMPLE_HEAD)
    table.add_column("share", justify="right")
    table.add_column("ms/update", justify="right")
    total = sum(profile.rank_seconds_per_update.values())
    for name, seconds in profile.rank_seconds_per_update.items():
        table.add_row(escape(look(name).title), f"{seconds / total:.1%}", f"{1e3 * seconds:.2f}")
    return table


def _figures(profiles: Sequence[Profile]) -> Table:
    table = Table("", title="What was done in it", box=box.SIMPLE_HEAD)
    for profile in profiles:
        table.add_column(escape(profile.label), justify="right")
    for title, figure in _FIGURES:
        cells = [figure(profile) for profile in profiles]
        if any(cell != _UNKNOWN for cell in cells):
            table.add_row(title, *cells)
    return table


_UNKNOWN = "-"


def _flop(count: float) -> str:
    """With the unit that fits: the built-in model takes millions where others take billions."""
    unit = next((unit for unit in ("M", "G") if count < 1000 * _UNITS[unit]), "T")
    return f"{count / _UNITS[unit]:.3g} {unit}FLOP"


_UNITS = {"M": 1e6, "G": 1e9, "T": 1e12}


def _tokens(profile: Profile) -> str:
    total = profile.total()
    return f"{total.tokens / profile.wall_seconds:,.0f}" if total else _UNKNOWN


def _padding(profile: Profile) -> str:
    total = profile.total()
    return f"{1 - total.tokens / total.tokens_computed:.1%}" if total else _UNKNOWN


def _flop_rate(profile: Profile) -> str:
    total = profile.total()
    return _flop(total.flop / profile.wall_seconds) if total else _UNKNOWN


def _matmul_rate(profile: Profile) -> str:
    return _flop(profile.floor.matmul_rate) if profile.floor else _UNKNOWN


def _state(profile: Profile) -> str:
    return _flop(profile.floor.state_flop) if profile.floor else _UNKNOWN


def _forwards(profile: Profile) -> str:
    return f"{profile.floor.forwards:g} F" if profile.floor else _UNKNOWN


def _floor(profile: Profile) -> str:
    return f"{1e3 * profile.floor.seconds:.3g}" if profile.floor else _UNKNOWN


def _share(profile: Profile) -> str:
    share = profile.floor_share()
    return _UNKNOWN if share is None else f"{share:.1%}"


_FIGURES: Sequence[tuple[str, Callable[[Profile], str]]] = (
    ("intervals measured (left out before)", lambda p: f"{p.intervals} ({p.warm_up_intervals})"),
    ("environment steps, updates", lambda p: f"{p.env_steps:,}, {p.updates:,}"),
    ("CPU cores kept busy by this process", lambda p: f"{p.cpu_seconds / p.wall_seconds:.2f}"),
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
