"""Commands that train: an agent, the built-in model, and for a moment, to see where the time goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sacglam import config as configuration
from sacglam.cli.common import console, errors
from sacglam.runs import directory
from sacglam.runtime import placement

PLACEMENT = "Where it runs"


def _placement(help: str, least: int | None = None) -> Any:
    """A placement option of `train`."""
    return typer.Option(help=help, show_default=False, rich_help_panel=PLACEMENT, min=least)


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
    engines: Annotated[int | None, _placement("Engines, vLLM or packed, that score; 0: the learner does.", 0)] = None,
    learners: Annotated[int | None, _placement("DeepSpeed ranks that learn; 0: the driver does.", 0)] = None,
    tensor_parallel: Annotated[int | None, _placement("GPUs that one engine is spread over.", 1)] = None,
    device: Annotated[str | None, _placement("auto, cpu, cuda or cuda:N; overrides the configuration's.")] = None,
    address: Annotated[str | None, _placement("A running Ray cluster to join, or auto.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Say what would run where, load it, predict memory and time from a minute's trial, and stop.",
            rich_help_panel=PLACEMENT,
        ),
    ] = False,
) -> None:
    """Train an agent.

    Examples:

      sacglam train

      sacglam train configs/paper/sac_her_flan_t5_base.yaml --seed 1 --set steps=50000

      sacglam train --resume runs/my-run

      sacglam train configs/paper/sac_her_qwen2.5_0.5b.yaml --gpus 8

      sacglam train --device cpu --engines 1 --learners 2

    Ctrl-C writes a checkpoint and ends cleanly; --resume goes on from it.
    """
    overrides = [*(set_ or []), *([] if seed is None else [f"seed={seed}"])]
    if resume is not None and (config is not None or out is not None or overrides):
        raise typer.BadParameter(
            "--resume goes on with a run as it was configured; leave out all but the placement options"
        )
    where = placement.overrides(gpus, engines, learners, tensor_parallel, device, address)
    settings = None if resume else configuration.load(config, [*overrides, *where])
    if dry_run:
        _dry_run(settings or configuration.override(_config_of(resume), where))
        return

    from sacglam import training
    from sacglam.cli.display import RichDisplay, print_summary

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


def _dry_run(settings: configuration.Config) -> None:
    """Placement at once, the rest after a trial; ends with 1 if the training could not start here."""
    from sacglam.cli.display import RichDisplay
    from sacglam.tools.dry_run import report
    from sacglam.tools.dry_run.forecast import forecast, placed

    settled, where = placed(settings)
    console.print(where.describe(), markup=False, highlight=False, soft_wrap=True)
    with RichDisplay(errors) as display:
        found = forecast(settled, where, display)
    report.show(console, found)
    raise typer.Exit(1 if found.missing else 0)


def profile(
    sources: Annotated[
        list[Path] | None,
        typer.Argument(
            help="YAML configurations and run folders, to be shown side by side; none: the quickstart.",
            metavar="[CONFIG|RUN]...",
            show_default=False,
        ),
    ] = None,
    intervals: Annotated[int, typer.Option(help="Intervals of the loop to measure.", min=1)] = 10,
    seconds: Annotated[
        float | None, typer.Option(help="Measure for so long instead.", min=0.1, show_default=False)
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Overrides one value in each; may be repeated.", metavar="KEY=VALUE"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A new folder; none: one under profiles/.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone.")] = False,
) -> None:
    """Show where a training's time goes: seconds by phase, tokens and FLOP per second, share of the floor.

    Runs the loop that `sacglam train` runs, without evaluations and checkpoints, and leaves the first intervals out.
    A RUN goes on from its newest checkpoint, and nothing in its folder changes. Writes profile.json, profile.png
    (stacked bars) and trace.json, which opens at https://ui.perfetto.dev.

    Examples:

      sacglam profile

      sacglam profile configs/quickstart.yaml runs/my-run --intervals 5

      sacglam profile --seconds 60 --set device=cpu --out where-it-goes
    """
    from sacglam.cli.display import RichDisplay
    from sacglam.tools.profile import report
    from sacglam.tools.profile.measure import measure, sources_of

    found = sources_of(sources or [configuration.quickstart_path()], set_ or [])
    folder = report.vacant(out or directory.fresh(found[0].config.seed, Path("profiles")))
    with RichDisplay(errors) as display:
        measured = [measure(source, intervals, seconds, display) for source in found]
    profiles, timelines = [profile for profile, _ in measured], [timeline for _, timeline in measured]
    report.write(folder, profiles, timelines)
    if as_json:
        print(json.dumps([profile.to_json() for profile in profiles]))
        return
    report.show(console, profiles)
    console.print(
        f"{folder}: profile.png, profile.json, trace.json (open it at https://ui.perfetto.dev)", soft_wrap=True
    )


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
    from sacglam.cli.display import RichDisplay
    from sacglam.tools.pretraining.recipes import RECIPES
    from sacglam.tools.pretraining.train import pretrain as run

    cpu.prepare(threads)
    with directory.explained(folder):
        folder.mkdir(parents=True)
    make, defaults = RECIPES[architecture]
    settings = replace(defaults, seed=seed, **({} if steps is None else {"steps": steps}))
    with RichDisplay(console) as display:
        display.stage("pre-training", settings.steps)
        loss = run(folder, settings, lambda step, _: display.advance(step), make)
    console.print(f"the model is in {folder}; loss {loss:.3f} nats a token over the last steps")
