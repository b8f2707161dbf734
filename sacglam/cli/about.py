"""Commands that tell what there is: environments, and what this machine can run."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from sacglam.cli.common import console, errors


def envs(as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone.")] = False) -> None:
    """List the environments with their goals by type, to train on and held out."""
    from sacglam.envs import describe

    found = [asdict(description) for description in describe()]
    if as_json:
        print(json.dumps(found))
        return
    for entry in found:
        table = Table("goal type", "train", "held out", title=entry["name"], title_justify="left")
        for kind in entry["goals"] | entry["heldout"]:
            table.add_row(kind, f"{entry['goals'].get(kind, 0):,}", f"{entry['heldout'].get(kind, 0):,}")
        table.add_row("[bold]all", f"{sum(entry['goals'].values()):,}", f"{sum(entry['heldout'].values()):,}")
        console.print(table)
    console.print("Your own: register a factory, or name it as package.module:factory (docs/environments.md).")


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Read versions only; import nothing.")] = False,
) -> None:
    """Say what this machine can run, and how to mend what it cannot.

    Tries each package in a process of its own, which takes up to half a minute. The exit code is 0 if a training in one
    process works.
    """
    from sacglam.tools.doctor import report

    with errors.status("looking at this machine") as status:
        diagnosis = report.examine(quick, lambda name: status.update(f"trying to import {name}"))
    if as_json:
        print(json.dumps(report.to_json(diagnosis)))
    else:
        report.print_report(console, diagnosis)
    raise typer.Exit(0 if diagnosis.trains else 1)
