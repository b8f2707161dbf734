"""The command line. Imports torch only inside the commands that need it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from sacglam import config as configuration
from sacglam.errors import SacglamError
from sacglam.runs import directory
from sacglam.runtime import placement

app = typer.Typer(
    name="sacglam",
    help="Reinforcement learning of LLM agents that choose among candidate actions (SAC-GLAM).\n\n"
    "Start with [bold]sacglam train[/bold]: it trains the built-in model on Playground-Text and tells what to do next.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
console = Console()
errors = Console(stderr=True)

RunArgument = Annotated[Path, typer.Argument(help="A run directory, as `sacglam train` leaves one.", metavar="RUN")]
DeviceOption = Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda or cuda:N.")]
SeedOption = Annotated[int, typer.Option(help="Seeds the episodes.", min=0)]
PLACEMENT = "Where it runs"


def _placement(help: str, least: int | None = None) -> Any:
    """A placement option of `train`."""
    return typer.Option(help=help, show_default=False, rich_help_panel=PLACEMENT, min=least)


def main() -> None:
    """Run the command line; errors meant for the user are printed, not raised."""
    try:
        app()
    except SacglamError as error:
        errors.print("[bold red]error:[/bold red]", end=" ")
        errors.print(str(error), markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)


@app.command()
def train(
    config: Annotated[
        Path | None, typer.Argument(help="A YAML configuration; none: the quickstart.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The new run's folder; none: one under runs/.", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Overrides the configuration's seed.", min=0)] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Overrides one value, e.g. --set algo.gamma=0.95; may be repeated.", metavar="KEY=VALUE"
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with this run; takes placement options only.", show_default=False, metavar="RUN"),
    ] = None,
    gpus: Annotated[int | None, _placement("GPUs to use, split over engines and learner ranks.", 0)] = None,
    engines: Annotated[int | None, _placement("vLLM engines that score actions; 0: the learner does.", 0)] = None,
    learners: Annotated[int | None, _placement("DeepSpeed ranks that learn; 0: the driver does.", 0)] = None,
    tensor_parallel: Annotated[int | None, _placement("GPUs that one engine is spread over.", 1)] = None,
    device: Annotated[str | None, _placement("auto, cpu, cuda or cuda:N; overrides the configuration's.")] = None,
    address: Annotated[str | None, _placement("A running Ray cluster to join, or auto.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would run where and why, and stop.", rich_help_panel=PLACEMENT)
    ] = False,
) -> None:
    """Train an agent.

    Examples:

      sacglam train

      sacglam train configs/playground_sac_her.yaml --seed 1 --set steps=50000

      sacglam train --resume runs/my-run

      sacglam train configs/playground_sac_her.yaml --gpus 4

      sacglam train --device cpu --engines 1 --learners 2

    Ctrl-C writes a checkpoint and ends cleanly; --resume goes on from it.
    """
    overrides = [*(set_ or []), *([] if seed is None else [f"seed={seed}"])]
    if resume is not None and (config is not None or out is not None or overrides):
        raise typer.BadParameter(
            "--resume goes on with a run as it was configured; leave out all but the placement options"
        )
    where = placement.settings(gpus, engines, learners, tensor_parallel, device, address)
    settings = None if resume else configuration.load(config, [*overrides, *where])
    if dry_run:
        _show_placement(settings or configuration.override(_config_of(resume), where))
        return

    from sacglam import training
    from sacglam.terminal import RichDisplay, print_summary

    with RichDisplay(console) as display:
        if settings is None:
            assert resume is not None
            folder, summary = resume, training.resume(resume, display, where)
        else:
            folder = out or directory.fresh(settings.seed)
            summary = training.train(settings, folder, display)
    print_summary(console, folder, summary)


def _config_of(run: Path | None) -> configuration.Config:
    assert run is not None
    return directory.RunDirectory.open(run).config()


def _show_placement(settings: configuration.Config) -> None:
    from sacglam.assembly import machine
    from sacglam.build import settle_device

    settled = settings.model_copy(update={"device": settle_device(settings)})
    console.print(placement.plan(settled, machine()).describe(), markup=False, highlight=False, soft_wrap=True)


@app.command()
def evaluate(
    run: RunArgument,
    goals: Annotated[Literal["train", "heldout"], typer.Option(help="Which goals.")] = "train",
    episodes: Annotated[int, typer.Option(help="Fresh episodes.", min=1)] = 500,
    seed: SeedOption = 1_000_000,
    sample: Annotated[bool, typer.Option("--sample", help="Draw actions instead of taking the most probable.")] = False,
    device: DeviceOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone.")] = False,
) -> None:
    """Measure a run's success on fresh episodes, by goal type.

    SPL is success weighted by optimal over taken length.
    """
    import numpy as np

    from sacglam.agent import load_agent
    from sacglam.build import build_env
    from sacglam.evaluate import evaluate as measure
    from sacglam.policy import SamplingPolicy, greedy
    from sacglam.terminal import RichDisplay

    agent = load_agent(run, device)
    rng = np.random.default_rng(seed)
    with RichDisplay(errors) as display:
        display.stage(f"evaluating {goals} goals", episodes)
        found = measure(
            lambda: build_env(agent.config),
            agent.brain.scorer(),
            SamplingPolicy(np.random.default_rng([seed, 1])) if sample else greedy,
            split=goals,
            episodes=episodes,
            rng=rng,
            progress=display.advance,
        )
    if as_json:
        print(json.dumps({"success": found.success, "episodes": found.episodes, "spl": found.spl}))
        return
    table = Table("goals", "success", title=f"{found.episodes} fresh episodes, {goals} goals")
    for name, rate in found.success.items():
        table.add_row(name, f"{rate:.3f}")
    table.add_row("spl", "unknown" if found.spl is None else f"{found.spl:.3f}")
    console.print(table)


@app.command()
def play(
    run: RunArgument,
    goal: Annotated[str | None, typer.Option(help="A goal; none: one at random.", show_default=False)] = None,
    seed: SeedOption = 0,
    sample: Annotated[bool, typer.Option("--sample", help="Draw actions instead of taking the most probable.")] = False,
    device: DeviceOption = "auto",
) -> None:
    """Watch one episode: each observation, and every action with its probability and Q value."""
    import numpy as np

    from sacglam.agent import load_agent
    from sacglam.terminal import play_episode

    play_episode(console, load_agent(run, device), goal, seed, np.random.default_rng(seed) if sample else None)


@app.command()
def envs(as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone.")] = False) -> None:
    """List the environments with their goals by type, to train on and held out."""
    from sacglam.envs import describe

    found = [description.to_json() for description in describe()]
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


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Read versions only; import nothing.")] = False,
) -> None:
    """Say what this machine can run, and how to mend what it cannot.

    Tries each package in a process of its own, which takes up to half a minute. The exit code is 0 if a training in one
    process works.
    """
    from sacglam.doctor import report

    with errors.status("looking at this machine") as status:
        diagnosis = report.examine(quick, lambda name: status.update(f"trying to import {name}"))
    if as_json:
        print(json.dumps(report.to_json(diagnosis)))
    else:
        report.print_report(console, diagnosis)
    raise typer.Exit(0 if diagnosis.trains else 1)


@app.command()
def export(run: RunArgument, folder: Annotated[Path, typer.Argument(help="Where to write.", metavar="DIR")]) -> None:
    """Write a run's agent as a peft adapter, and its critic as safetensors beside it."""
    from sacglam.agent import load_agent
    from sacglam.export import export as write

    agent = load_agent(run, "cpu")
    write(agent.brain, agent.config, folder)
    console.print(f"adapter and critic of step {agent.env_steps:,} are in {folder}")


@app.command()
def pretrain(
    folder: Annotated[Path, typer.Argument(help="Where to write the model; it must not exist yet.", metavar="DIR")],
    steps: Annotated[int | None, typer.Option(help="Fewer for a trial.", min=1, show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="Seeds the corpus and the first weights.", min=0)] = 0,
    threads: Annotated[
        int, typer.Option(help="CPU threads. `builtin` took 2, `builtin-t5` 1; the last bits depend on it.", min=1)
    ] = 2,
    architecture: Annotated[
        Literal["llama", "t5"], typer.Option(help="Decoder-only, as `builtin`, or encoder-decoder, as `builtin-t5`.")
    ] = "llama",
) -> None:
    """Make a built-in tiny language model anew, from word knowledge and random play.

    With its defaults this is how the models that come with sacglam were made. Train with it by
    --set model.name=DIR.

    Examples:

      sacglam pretrain my-model

      sacglam pretrain my-t5 --architecture t5
    """
    from dataclasses import replace

    from sacglam import cpu
    from sacglam.pretraining.recipes import RECIPES
    from sacglam.pretraining.train import pretrain as run
    from sacglam.terminal import RichDisplay

    cpu.prepare(threads)
    with directory.explained(folder):
        folder.mkdir(parents=True)
    make, defaults = RECIPES[architecture]
    settings = replace(defaults, seed=seed, **({} if steps is None else {"steps": steps}))
    with RichDisplay(console) as display:
        display.stage("pre-training", settings.steps)
        loss = run(folder, settings, lambda step, _: display.advance(step), make)
    console.print(f"the model is in {folder}; loss {loss:.3f} nats a token over the last steps")
