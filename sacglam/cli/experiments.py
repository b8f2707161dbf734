"""The command `sacglam compare`."""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sacglam import files
from sacglam.cli.display import RichDisplay, console, print_plain
from sacglam.cli.train import SetOption, config_argument
from sacglam.errors import ConfigError, RunDirectoryError, write_explained
from sacglam.runs.stopping import Stopped
from sacglam.tools.experiments import plan, results, runner
from sacglam.tools.experiments.plan import Experiment, Run

_LARGEST_REPORT = 2048 * files.MIB


def compare(
    configs: Annotated[
        list[Path],
        config_argument(
            "YAML files or names of configurations; the part after the last slash is the label. Or one experiment: "
            f"{', '.join(plan.ABLATIONS)}, or a YAML file like theirs.",
            "CONFIG...|EXPERIMENT",
            plan.ABLATIONS,
        ),
    ],
    seeds: Annotated[
        str,
        typer.Option(help="Seeds per configuration: N for 0 to N-1, or a range like 10-13.", metavar="N|FIRST-LAST"),
    ] = "3",
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/compare"),
    jobs: Annotated[
        int,
        typer.Option(
            help="Parallel runs. With more than 1, they share the machine and blur each other's timings.", min=1
        ),
    ] = 1,
    threads: Annotated[
        int, typer.Option(help="CPU threads per run; 0: as the model needs, at most cores / jobs.", min=0)
    ] = 0,
    set_: SetOption = None,
    threshold: Annotated[
        float, typer.Option(help="Success rate; the report gives the steps and seconds to reach it.", min=0, max=1)
    ] = 0.8,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Write the report from finished runs, without running anything.")
    ] = False,
) -> None:
    """Train several configurations with several seeds, or one of the paper's ablations, and report the results.

    Do not report on the seeds you tuned with. Runs alternate between configurations, and all are evaluated at the same
    steps. Ctrl-C writes checkpoints. Run the same command again to resume: it skips finished runs, resumes unfinished
    ones, and refuses runs made with different settings.

    Writes report.md, report.json and report.png to the folder (for an experiment, NAME.md and so on). Experiments in
    one folder share the runs of variants they have in common. The exit code is 1 if any run failed or is unfinished.

    \b
    Examples:
      sacglam compare quickstart mine.yaml --seeds 3 --out runs/mine
      sacglam compare quickstart mine.yaml --seeds 3 --out runs/mine --report-only
      sacglam compare quickstart mine.yaml --seeds 10-13 --out runs/fresh
      sacglam compare critic --seeds 2 --jobs 4 --threads 1 --out runs/ablations
    """
    overrides = set_ or []
    experiment = plan.experiment(configs, overrides)
    settings = _settings(experiment, overrides, threads, report_only)
    _run_and_report(
        experiment, plan.runs(experiment, plan.seeds(seeds), settings, out), out, jobs, threshold, report_only
    )


def _run_and_report(
    experiment: Experiment, runs: Sequence[Run], out: Path, jobs: int, threshold: float, report_only: bool
) -> None:
    """Run what is unfinished and write the report; exit with 1 if any run failed or is unfinished."""
    written = [out / f"{experiment.name}.{ending}" for ending in ("png", "md", "json")]
    there = [file for file in written if file.exists()]
    found = files.read_json(written[-1], files.OBJECT, _LARGEST_REPORT) or {}
    if there and not {"command", "groups"} <= found.keys():
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
    if not (succeeded and all(run.finished for run in runs)):
        raise typer.Exit(1)


def _settings(experiment: Experiment, overrides: list[str], threads: int, report_only: bool) -> list[str]:
    """The overrides for all runs, which share one evaluation grid."""
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
