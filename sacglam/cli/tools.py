"""Commands around training: environments, what this machine can run, and the run explorer."""

import json
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape
from rich.table import Table

from sacglam import config as configuration
from sacglam.cli.display import JsonOption, RichDisplay, TrustOption, console, errors, print_plain, settings_of
from sacglam.config.sections import EnvConfig
from sacglam.errors import ConfigError

EnvOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Setting of env, such as env.options.max_steps=5. Repeatable.", metavar="KEY=VALUE"),
]
_MARKS = {
    "ok": "[green]ok[/green]",
    "note": "[dim]-[/dim]",
    "warning": "[yellow]warn[/yellow]",
    "fault": "[red]fault[/red]",
}


def envs(
    check: Annotated[
        str | None,
        typer.Option(
            help="Check this one: a name from the list, package.module:factory, gymnasium:ID, or openenv:URL.",
            metavar="NAME",
        ),
    ] = None,
    set_: EnvOption = None,
    episodes: Annotated[int, typer.Option(help="Number of random episodes to check.", min=1)] = 100,
    steps: Annotated[int, typer.Option(help="Maximum steps per checked episode.", min=1)] = 50,
    as_json: JsonOption = False,
) -> None:
    """List the environments with their training and held-out goals by type, or check one.

    \b
    Examples:
      sacglam envs
      sacglam envs --check house:House --set env.options.max_steps=5
      sacglam envs --check gymnasium:Taxi-v4 --set env.reward=environment
      sacglam envs --check openenv:http://127.0.0.1:8000
    """
    if check is None:
        if set_:
            raise ConfigError("--set is for an environment to check: name it with --check NAME")
        _list(as_json)
        return
    from sacglam.envs import check_env, make

    settings = _settings(check, set_)
    with redirect_stdout(sys.stderr if as_json else sys.stdout):  # what the environment prints is not JSON
        rewarding = settings.reward == "environment"
        trial = check_env(
            lambda: make(settings.name, **settings.options).rewarding(rewarding), episodes, settings.repeats, steps
        )
    if as_json:
        print(json.dumps(asdict(trial)))
        return
    print_plain(
        console,
        f"{check} keeps the contract: {trial.goals:,} goal{'s' * (trial.goals != 1)}, {trial.episodes} random "
        f"episodes, {trial.steps:,} steps, {trial.successes} successes, {trial.others_achieved:,} distinct "
        f"other goals achieved, up to {trial.most_actions} actions per state",
    )
    for line in (*trial.notes, *trial.findings):
        print_plain(console, line)


def _list(as_json: bool) -> None:
    from sacglam.envs import describe

    listed = [asdict(description) for description in describe()]
    if as_json:
        print(json.dumps(listed))
        return
    for entry in listed:
        if entry["missing"]:
            print_plain(console, entry["missing"])
            continue
        table = Table("goal type", "train", "held out", title=entry["name"], title_justify="left")
        for kind in entry["goals"] | entry["heldout"]:
            table.add_row(kind, f"{entry['goals'].get(kind, 0):,}", f"{entry['heldout'].get(kind, 0):,}")
        table.add_row("[bold]all", f"{sum(entry['goals'].values()):,}", f"{sum(entry['heldout'].values()):,}")
        console.print(table)
    console.print(
        "To add your own, register a factory or name it as package.module:factory (docs/start/environments.md). "
        "Gymnasium environments: gymnasium:ID (docs/guides/gymnasium.md). On an OpenEnv server: openenv:URL "
        "(docs/guides/openenv.md)."
    )


def serve_env(
    name: Annotated[str, typer.Argument(help="Environment to serve, named as in env.name.", metavar="NAME")],
    set_: EnvOption = None,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 picks a free one.", min=0, max=65535)] = 8000,
) -> None:
    """Serve an environment on this machine over OpenEnv's protocol, for other libraries and for sacglam itself.

    Each session has its own environment. Ctrl-C stops the server.

    \b
    Examples:
      sacglam serve-env playground_simple
      sacglam serve-env house:House --set env.options.max_steps=5 --port 8001

    From another machine: ssh -L 8000:127.0.0.1:8000 HOST
    """
    from sacglam.envs.registry import application
    from sacglam.tools import loopback

    settings = _settings(name, set_)
    served = partial(application, settings.name, settings.options)
    loopback.serve(served, port, lambda at: print_plain(console, f"env.name: openenv:{at} (Ctrl-C stops it)"))


def _settings(name: str, options: list[str] | None) -> EnvConfig:
    return configuration.load(None, [*settings_of(options, "env"), f"env.name={name}"]).env


def doctor(as_json: JsonOption = False) -> None:
    """Check what this machine can run, and show how to fix what it cannot.

    Imports each package in a separate process, which takes up to half a minute. The exit code is 0 if single-process
    training works.
    """
    from sacglam.tools.doctor import TITLES, diagnose, gather

    with errors.status("checking this machine"):
        diagnosis = diagnose(gather())
    if as_json:
        print(json.dumps(asdict(diagnosis)))
    else:
        table = Table("", "what", "found")
        for finding in diagnosis.findings:
            table.add_row(_MARKS[finding.level], escape(finding.name), escape(finding.found))
        console.print(table)
        for finding in diagnosis.findings:
            if finding.fix and finding.level in ("warning", "fault"):
                print_plain(console, f"fix {finding.name}:  {finding.fix}")
        for verdict in diagnosis.verdicts:
            answer = "[green]yes[/green]" if verdict.works else "[red]no [/red]"
            console.print(f"{answer}  [bold]{TITLES[verdict.way]}[/bold]")
            if not verdict.works:
                print_plain(console, f"     {verdict.reason}\n     fix: {verdict.fix}")
    raise typer.Exit(0 if any(verdict.works for verdict in diagnosis.verdicts if verdict.way == "one") else 1)


def track(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.", metavar="RUN...")],
    to: Annotated[Literal["aim", "wandb", "trackio", "tensorboard"], typer.Option(help="The tracker.")] = "aim",
    repo: Annotated[
        Path | None, typer.Option(help="Folder of the tracker's files (default: the folder that the run is in).")
    ] = None,
    trust: TrustOption = False,
) -> None:
    """Import runs into a tracker: metrics, success by goal type and settings; for Aim also sample episodes.

    For runs that were trained without the tracker, or while it was locked, full or broken. Safe to repeat: runs that
    the tracker already has are updated. Open Aim's explorer with sacglam ui; the others have their own commands: wandb
    sync, trackio show, tensorboard --logdir runs/tensorboard.

    \b
    Examples:
      sacglam track runs/my-run runs/another
      sacglam track runs/my-run --to tensorboard
    """
    from sacglam.runs.directory import RunDirectory
    from sacglam.tools.tracking.sidecar import TITLES, repo_of
    from sacglam.tools.tracking.sync import fill

    if repo and to == "trackio":
        raise typer.BadParameter("Trackio's files are where TRACKIO_DIR says; leave out --repo")
    with RichDisplay(errors) as display:
        for each in runs:
            run = RunDirectory.open(each, trust or "environment")
            folder = (repo or repo_of(run)).resolve()
            display.stage(f"importing {each}", len(run.metrics()))
            run_hash = fill(to, run, folder, advance=display.advance)
            print_plain(console, f"{each} is {run_hash} in {folder / '.aim' if to == 'aim' else TITLES[to]}")


def ui(
    repo: Annotated[
        Path, typer.Argument(help="Folder of the Aim repository, by default that of the runs.", metavar="DIR")
    ] = Path("runs"),
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.", min=1, max=65535)] = 43800,
) -> None:
    """Open Aim's run explorer, on this machine only, with ready-made explorations.

    They show success over steps and over seconds, by algorithm, and success by goal type. Ctrl-C stops it.

    From another machine: ssh -L 43800:127.0.0.1:43800 HOST
    """
    from sacglam.tools.tracking.aim import serve

    def show(address: str, pages: Mapping[str, str]) -> None:
        status.stop()
        console.print(f"{address}/runs: all runs")
        for name, page in pages.items():
            console.print(f"{page}: {name}", highlight=False, soft_wrap=True)
        console.print("Ctrl-C stops it.")

    with errors.status("starting Aim's run explorer") as status:
        serve(repo, port, show)
