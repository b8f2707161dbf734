"""From an experiment to its report: check, run, write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from sacglam import cpu
from sacglam.errors import ConfigError
from sacglam.runs.directory import explained
from sacglam.tools.experiments import plan
from sacglam.tools.experiments.display import RunsDisplay
from sacglam.tools.experiments.markdown import markdown
from sacglam.tools.experiments.plan import Experiment, Run
from sacglam.tools.experiments.report import report
from sacglam.tools.experiments.runner import Failure, Outcome, Runner, sole_user
from sacglam.tools.experiments.state import check_same


@dataclass(frozen=True)
class Files:
    """Where a report goes."""

    figure: Path
    text: Path
    values: Path


@dataclass(frozen=True)
class Request:
    """How an experiment is to be run and reported."""

    root: Path
    seeds: int
    jobs: int
    threads: int
    overrides: tuple[str, ...]
    threshold: float
    report_only: bool
    command: str


def run(experiment: Experiment, request: Request, files: Files, console: Console) -> bool:
    """Run what is not finished, and write the report; whether all of it came to its end.

    Raises:
        SacglamError: a setting is wrong, a folder holds another run, another process works there, ...
    """
    runs = _runs(experiment, request, console)
    if request.report_only:
        outcome = Outcome()
    else:
        check_same(runs)
        session = {"cpu": cpu.model(), "cores": cpu.cores(), "jobs": request.jobs, "threads": request.threads}
        with sole_user(request.root) as lock, RunsDisplay(console) as display:
            outcome = Runner(request.jobs, session, display).run(runs, lock)
    for failure in outcome.failures:
        _print_failure(failure, console)
    if outcome.stopped:
        _say(console, "stopped; the same command goes on, and --report-only reports on what is finished")
        return False
    return _write_report(experiment, runs, request, files, console) and not outcome.failures


def _runs(experiment: Experiment, request: Request, console: Console) -> list[Run]:
    """The runs, evaluated on one grid of steps with `threads` threads each; refuses settings that are wrong."""
    settings = [*request.overrides, f"threads={request.threads}"]
    grid = plan.evaluation_grid([variant.config(settings) for variant in experiment.variants])
    if grid is not None:
        settings.append(f"evaluation.every_steps={grid}")
        if not request.report_only:
            _say(console, f"all runs are evaluated every {grid:,} environment steps (evaluation.every_steps)")
    return plan.runs(experiment, request.seeds, settings, request.root)


def _write_report(
    experiment: Experiment, runs: Sequence[Run], request: Request, files: Files, console: Console
) -> bool:
    """Write figure, text and values; whether there was anything to write."""
    values = report(experiment, runs, request.threshold, request.command)
    if not values["runs"]["finished"]:
        _say(console, f"no run under {request.root} is finished, so there is nothing to report on")
        return False
    from sacglam.tools.experiments.figure import draw_report

    files.figure.parent.mkdir(parents=True, exist_ok=True)
    draw_report(values, files.figure)
    for file, content in (
        (files.text, markdown(values, files.figure.name)),
        (files.values, json.dumps(values, indent=2) + "\n"),
    ):
        with explained(file):
            file.write_text(content)
    told = f"{values['runs']['finished']} of {values['runs']['planned']} runs"
    _say(console, f"report of {told}: {files.text}, {files.figure}, {files.values}")
    return True


def _print_failure(failure: Failure, console: Console) -> None:
    _say(console, f"{failure.run.title} failed ({failure.stage}). The end of {failure.log}:")
    for line in failure.last_lines:
        _say(console, f"  {line}")


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def check_overrides(overrides: Sequence[str]) -> None:
    """Refuse overrides that the options of the command decide.

    Raises:
        ConfigError: `threads` or `seed` is among them.
    """
    for key, option in (("threads", "--threads N"), ("seed", "--seeds N")):
        if any(override.partition("=")[0] == key for override in overrides):
            raise ConfigError(f"expected {key} to be given by {option}, which is the same for all; got --set {key}=...")
