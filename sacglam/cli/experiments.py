"""The commands `sacglam compare` and `sacglam ablate`."""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sacglam import cpu, files
from sacglam.cli.display import RichDisplay, console, print_plain
from sacglam.cli.train import config_argument
from sacglam.errors import ConfigError, RunDirectoryError, write_explained
from sacglam.runs.stopping import Stopped
from sacglam.tools.experiments import ablations, plan, results, runner
from sacglam.tools.experiments.plan import Experiment, Run

SeedsOption = Annotated[
    str, typer.Option(help="Seeds per configuration: N for 0 to N-1, or a range like 10-13.", metavar="N|FIRST-LAST")
]
JobsOption = Annotated[
    int,
    typer.Option(help="Parallel runs. With more than 1, they share the machine and blur each other's timings.", min=1),
]
ThreadsOption = Annotated[
    int | None, typer.Option(help="CPU threads per run (default: cores / jobs, at most 4).", min=1, show_default=False)
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override one value in all runs. Repeatable.", metavar="KEY=VALUE")
]
ThresholdOption = Annotated[
    float, typer.Option(help="Success rate at which the report measures steps and seconds.", min=0, max=1)
]
ReportOnlyOption = Annotated[
    bool, typer.Option("--report-only", help="Write the report from finished runs, without running anything.")
]


def compare(
    configs: Annotated[
        list[Path], config_argument("YAML files or names; what follows the last slash is the label.", "CONFIG...")
    ],
    seeds: SeedsOption = "3",
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/compare"),
    jobs: JobsOption = 1,
    threads: ThreadsOption = None,
    set_: SetOption = None,
    threshold: ThresholdOption = 0.8,
    report_only: ReportOnlyOption = False,
) -> None:
    """Train several configurations with several seeds, and report the results.

    Do not report on the seeds you tuned with. Runs alternate between configurations, and all use the same number of
    threads and the same evaluation steps. Ctrl-C writes checkpoints. Run the same command again to resume: it skips
    finished runs, resumes unfinished ones, and refuses runs made with different settings.

    Writes report.md, report.json and figure2.png to the folder. The exit code is 1 if any run failed or is unfinished.

    \b
    Examples:
      sacglam compare quickstart mine.yaml --seeds 3 --out runs/mine
      sacglam compare quickstart mine.yaml --seeds 3 --out runs/mine --report-only
      sacglam compare quickstart mine.yaml --seeds 10-13 --out runs/fresh
    """
    _run_and_report(plan.comparison(configs, set_ or []), out, seeds, jobs, threads, set_ or [], threshold, report_only)


def ablate(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name or YAML file of an ablation (default: list them).",
            metavar="NAME",
            autocompletion=lambda incomplete: [n for n in ablations.shipped() if n.startswith(incomplete)],
        ),
    ] = None,
    seeds: SeedsOption = "2",
    out: Annotated[Path, typer.Option(help="Folder for the runs and the reports.")] = Path("runs/ablations"),
    jobs: JobsOption = 1,
    threads: ThreadsOption = None,
    set_: SetOption = None,
    threshold: ThresholdOption = 0.8,
    report_only: ReportOnlyOption = False,
    list_: Annotated[bool, typer.Option("--list", help="List the ablations and their cost.")] = False,
) -> None:
    """Run one of the paper's ablations at CPU scale and plot the results.

    Ablations in one folder reuse the runs of variants they have in common. Ctrl-C writes checkpoints, and the same
    command resumes. Writes NAME.md, NAME.json and NAME.png to the folder. The exit code is 1 if any run failed or is
    unfinished.

    \b
    Examples:
      sacglam ablate --list
      sacglam ablate critic --seeds 2
      sacglam ablate n_step --jobs 4 --threads 1 --out runs/ablations
    """
    if name is None or list_:
        _list_ablations()
    else:
        _run_and_report(ablations.load(name), out, seeds, jobs, threads, set_ or [], threshold, report_only)


def _list_ablations() -> None:
    table = Table("ablation", "varies", "variants", "steps per seed", "updates")
    for name in ablations.shipped():
        experiment = ablations.load(name)
        configs = [variant.config() for variant in experiment.variants]
        steps = sum(config.steps for config in configs)
        updates = sum(config.steps // config.algo.update_interval * config.algo.updates for config in configs)
        table.add_row(name, experiment.title, str(len(configs)), f"{steps:,}", f"{updates:,}")
    console.print(table)
    console.print(
        "An update of the built-in model takes 0.1 to 0.3 s on a CPU. A variant shared by several ablations runs once."
    )


def _run_and_report(
    experiment: Experiment,
    out: Path,
    seeds: str,
    jobs: int,
    threads: int | None,
    overrides: list[str],
    threshold: float,
    report_only: bool,
) -> None:
    """Run what is unfinished and write the report; exit with 1 if any run failed or is unfinished."""
    settings = _settings(experiment, overrides, threads or cpu.default_threads(jobs), report_only)
    runs = plan.runs(experiment, plan.seeds(seeds), settings, out)
    written = [out / experiment.figure, out / f"{experiment.name}.md", out / f"{experiment.name}.json"]
    there = [file for file in written if file.exists()]
    if there and not {"command", "groups"} <= (files.read_json(written[-1], files.OBJECT) or {}).keys():
        raise RunDirectoryError(
            f"the report would overwrite {there[0]}, which is not a report; choose another --out, or remove that file"
        )
    succeeded = True
    if not report_only:
        results.check_same(runs)
        try:
            with RichDisplay(console) as display:
                succeeded = runner.run_all(runs, jobs, out, display)
        except Stopped:
            print_plain(console, "stopped; the same command resumes, and --report-only reports the finished runs")
            raise typer.Exit(1) from None
    if not any(run.finished for run in runs):
        print_plain(console, f"no run under {out} is finished, so there is nothing to report")
        raise typer.Exit(1)
    _write_report(experiment, runs, written, threshold)
    if not succeeded:
        raise typer.Exit(1)


def _settings(experiment: Experiment, overrides: list[str], threads: int, report_only: bool) -> list[str]:
    """The overrides for all runs, which share one thread count and one evaluation grid."""
    for key, option in (("threads", "--threads N"), ("seed", "--seeds N")):
        if any(override.partition("=")[0] == key for override in overrides):
            raise ConfigError(f"set {key} with {option}, which applies to all runs; got --set {key}=...")
    settings = [*overrides, f"threads={threads}"]
    grid = plan.evaluation_grid([variant.config(settings) for variant in experiment.variants])
    if grid is None:
        return settings
    if not report_only:
        print_plain(console, f"all runs are evaluated every {grid:,} environment steps (evaluation.every_steps)")
    return [*settings, f"evaluation.every_steps={grid}"]


def _write_report(experiment: Experiment, runs: Sequence[Run], written: Sequence[Path], threshold: float) -> None:
    from sacglam.tools.experiments.figure import draw_report
    from sacglam.tools.experiments.markdown import markdown
    from sacglam.tools.experiments.report import report

    values, (figure, text, data) = report(experiment, runs, threshold, shlex.join(["sacglam", *sys.argv[1:]])), written
    with write_explained(figure.parent):
        draw_report(values, figure)
        files.write(text, markdown(values, figure.name))
        files.write(data, json.dumps(values, indent=2, default=asdict) + "\n")
    count = values["runs"]
    print_plain(console, f"report of {count['finished']} of {count['planned']} runs: {text}, {figure}, {data}")
