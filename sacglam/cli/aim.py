"""The commands that have to do with Aim, the run explorer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from sacglam.cli.common import console, errors


def aim_import(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.", metavar="RUN...")],
    repo: Annotated[
        Path | None,
        typer.Option(help="Folder with the Aim repository; none: the run's tracking.repo.", show_default=False),
    ] = None,
) -> None:
    """Fill Aim from the files of runs: metrics, success by goal type, sample episodes, curves, settings.

    For runs that were trained without Aim, or while its repository was locked, full or broken. May be repeated: a run
    that Aim knows is brought up to date. Look at them with sacglam ui.
    """
    from sacglam.cli.display import RichDisplay
    from sacglam.runs.directory import RunDirectory
    from sacglam.runs.sidecar import record_hash, repo_of
    from sacglam.tools.aim.sync import fill

    with RichDisplay(errors) as display:
        for each in runs:
            run = RunDirectory.open(each)
            folder = (repo or repo_of(run, run.config().tracking)).resolve()
            display.stage(f"importing {each}", len(run.metrics()))
            run_hash = fill(run, folder, advance=display.advance)
            record_hash(run, run.summary() or {})
            console.print(f"{each} is {run_hash} in {folder / '.aim'}", markup=False, highlight=False, soft_wrap=True)


def ui(
    repo: Annotated[
        Path, typer.Argument(help="Folder with the Aim repository: the one that holds the runs.", metavar="DIR")
    ] = Path("runs"),
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.", min=1, max=65535)] = 43800,
) -> None:
    """Open Aim's run explorer, on this machine alone, with prepared explorations.

    They show success over steps and over seconds, by algorithm, and success by goal type. Ctrl-C ends it.

    From another machine:

      ssh -L 43800:127.0.0.1:43800 HOST
    """
    from sacglam.tools.aim.explorer import serve

    def show(address: str, pages: Mapping[str, str]) -> None:
        status.stop()
        console.print(f"{address}/runs: all runs")
        for name, page in pages.items():
            console.print(f"{page}: {name}", highlight=False, soft_wrap=True)
        console.print("Ctrl-C ends it.")

    with errors.status("starting Aim's run explorer") as status:
        serve(repo, port, show)
