"""The commands `sacglam compare` and `sacglam ablate`: what they take, and their help."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from sacglam import cpu
from sacglam.tools.experiments import plan

if TYPE_CHECKING:
    from sacglam.tools.experiments.run import Request

console = Console()

SeedsOption = Annotated[int, typer.Option(help="Runs each with the seeds 0 to N-1.", min=1, metavar="N")]
JobsOption = Annotated[
    int, typer.Option(help="Runs at a time. More than 1 makes seconds less comparable: runs share the machine.", min=1)
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(help="CPU threads of each run; none: cores / jobs, 4 at most.", min=1, show_default=False),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Overrides one value in all runs; may be repeated.", metavar="KEY=VALUE"),
]
ThresholdOption = Annotated[
    float, typer.Option(help="Success to whose first evaluation steps and seconds are counted.", min=0, max=1)
]
ReportOnlyOption = Annotated[
    bool, typer.Option("--report-only", help="Run nothing; report on the runs that are finished.")
]


def compare(
    configs: Annotated[list[Path], typer.Argument(help="YAML files; each goes by its name.", metavar="CONFIG...")],
    seeds: SeedsOption = 3,
    out: Annotated[Path, typer.Option(help="Folder of the runs and the report.")] = Path("runs/compare"),
    jobs: JobsOption = 1,
    threads: ThreadsOption = None,
    set_: SetOption = None,
    threshold: ThresholdOption = 0.8,
    report_only: ReportOnlyOption = False,
) -> None:
    """Train configurations side by side, and report on them.

    Examples:

      sacglam compare configs/quickstart.yaml mine.yaml --seeds 3 --out runs/mine

      sacglam compare configs/quickstart.yaml mine.yaml --seeds 3 --out runs/mine --report-only

    Seeds alternate between the configurations, all with the same threads and evaluated at the same steps. Ctrl-C writes
    checkpoints; the same command goes on: finished runs are skipped, begun ones resumed, and a run that was made with
    other settings is refused. Success on held-out goals is measured after each training.

    Writes report.md, report.json and figure2.png to the folder. The exit code is 1 if a run failed or is left to do.
    """
    from sacglam.tools.experiments.run import Files, run

    request = _request(out, seeds, jobs, threads, set_, threshold, report_only)
    files = Files(out / "figure2.png", out / "report.md", out / "report.json")
    raise typer.Exit(0 if run(plan.comparison(configs), request, files, console) else 1)


def _request(
    out: Path, seeds: int, jobs: int, threads: int | None, set_: list[str] | None, threshold: float, report_only: bool
) -> Request:
    from sacglam.tools.experiments.run import Request, check_overrides

    overrides = tuple(set_ or ())
    check_overrides(overrides)
    return Request(
        root=out,
        seeds=seeds,
        jobs=jobs,
        threads=threads or cpu.default_threads(jobs),
        overrides=overrides,
        threshold=threshold,
        report_only=report_only,
        command=shlex.join(["sacglam", *sys.argv[1:]]),
    )


def ablate(
    name: Annotated[
        str | None,
        typer.Argument(help="An ablation, or a YAML file of one; none: list them.", metavar="NAME", show_default=False),
    ] = None,
    seeds: SeedsOption = 2,
    out: Annotated[Path, typer.Option(help="Folder of the runs and the reports.")] = Path("runs/ablations"),
    jobs: JobsOption = 1,
    threads: ThreadsOption = None,
    set_: SetOption = None,
    threshold: ThresholdOption = 0.8,
    report_only: ReportOnlyOption = False,
    list_: Annotated[bool, typer.Option("--list", help="List the ablations and what they cost.")] = False,
) -> None:
    """Run one of the paper's ablations at CPU scale, and draw its figure.

    Examples:

      sacglam ablate --list

      sacglam ablate critic --seeds 2

      sacglam ablate n_step --jobs 4 --threads 1 --out runs/ablations

    Ablations that share a variant share its run if they share the folder. Ctrl-C writes checkpoints, and the same
    command goes on. Writes NAME.md, NAME.json and NAME.png to the folder. The exit code is 1 if a run failed or is left
    to do.
    """
    from sacglam.tools.experiments import ablations, goals
    from sacglam.tools.experiments.run import Files, run

    if name is None or list_:
        _list_ablations()
        return
    if name == goals.NAME:
        console.print("written: " + ", ".join(map(str, goals.report_goals(out))), soft_wrap=True, highlight=False)
        return
    experiment = ablations.load(name, also=[goals.NAME])
    request = _request(out, seeds, jobs, threads, set_, threshold, report_only)
    files = Files(*(out / f"{experiment.name}.{ending}" for ending in ("png", "md", "json")))
    raise typer.Exit(0 if run(experiment, request, files, console) else 1)


def _list_ablations() -> None:
    from sacglam.tools.experiments import ablations, goals

    table = Table("ablation", "asks for", "variants", "steps a seed", "updates")
    table.add_row(goals.NAME, goals.ABOUT, "-", "-", "-")
    for name in ablations.shipped():
        experiment = ablations.load(name)
        configs = [variant.config() for variant in experiment.variants]
        steps = sum(config.steps for config in configs)
        updates = sum(
            config.steps // config.algo.update_interval * config.algo.updates_per_interval for config in configs
        )
        table.add_row(name, experiment.title, str(len(configs)), f"{steps:,}", f"{updates:,}")
    console.print(table)
    console.print(
        "An update of the built-in model takes 0.1 to 0.3 s on a CPU. Variants that ablations share run once."
    )
