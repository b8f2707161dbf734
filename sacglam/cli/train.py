"""Commands that train an agent or a tiny language model, or profile a few training intervals."""

import json
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

from sacglam import config as configuration
from sacglam.cli.display import (
    JsonOption,
    RichDisplay,
    TrustOption,
    console,
    errors,
    print_plain,
    print_summary,
    settings_of,
)
from sacglam.errors import write_explained
from sacglam.runs import directory
from sacglam.runtime import placement


def config_argument(help: str, metavar: str, others: Iterable[str] = ()) -> Any:
    """An argument that takes a configuration's path or name, or one of `others`; the shell completes names or files."""

    def fitting(incomplete: str) -> list[str]:
        return [name for name in (*others, *configuration.names()) if name.startswith(incomplete)]

    return typer.Argument(help=help, metavar=metavar, autocompletion=fitting)


SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override one value, e.g. --set algo.gamma=0.95. Repeatable.", metavar="KEY=VALUE"),
]
_WHERE_IT_RUNS = "Where it runs"


def _placement(help: str, least: int | None = None) -> Any:
    return typer.Option(help=help, rich_help_panel=_WHERE_IT_RUNS, min=least)


def train(
    config: Annotated[
        Path | None, config_argument("Configuration, a YAML file or a name (default: quickstart).", "CONFIG")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="New folder for the run (default: one in runs/).")] = None,
    seed: Annotated[int | None, typer.Option(help="Override the configuration's seed.", min=0)] = None,
    threads: Annotated[int | None, typer.Option(help="Override the configuration's CPU threads.", min=1)] = None,
    set_: SetOption = None,
    resume: Annotated[
        Path | None, typer.Option(help="Resume this run, perhaps on other processes or devices.", metavar="RUN")
    ] = None,
    trust: TrustOption = False,
    gpus: Annotated[int | None, _placement("GPUs to use, split between vLLM engines and learner ranks.", 0)] = None,
    engines: Annotated[int | None, _placement("Scoring engines; with 0, the learner ranks score.", 0)] = None,
    learners: Annotated[int | None, _placement("DeepSpeed learner ranks; with 0, the driver learns.", 0)] = None,
    tensor_parallel: Annotated[int | None, _placement("GPUs per engine.", 1)] = None,
    device: Annotated[str | None, _placement("auto, cpu, cuda or cuda:N; overrides the configuration's.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show the placement, try it for a minute, predict memory and time, then exit.",
            rich_help_panel=_WHERE_IT_RUNS,
        ),
    ] = False,
) -> None:
    """Train an agent.

    \b
    Examples:
      sacglam train
      sacglam train paper/sac_her_flan_t5_base --seed 1 --set steps=50000
      sacglam train --resume runs/my-run
      sacglam train paper/sac_her_qwen2.5_0.5b --gpus 8
      sacglam train --device cpu --engines 1 --learners 2

    Ctrl-C writes a checkpoint and stops; --resume continues from it.
    """
    numbers = {"seed": seed, "threads": threads}
    overrides = [*(set_ or []), *(f"{key}={value}" for key, value in numbers.items() if value is not None)]
    if resume is not None and (config is not None or out is not None or overrides):
        raise typer.BadParameter("--resume keeps the run's configuration; add only options under 'Where it runs'")

    def read(where: list[str]) -> configuration.Config:
        if resume is None:
            return configuration.load(config, [*overrides, *where])
        return configuration.override(directory.RunDirectory.open(resume, trust).config(), where)

    where, settings = _placed(read, gpus, engines, learners, tensor_parallel, device)
    if dry_run:
        _dry_run(settings if resume is None else settings.model_copy(update={"init_from": None}))
        return

    from sacglam import training
    from sacglam.tools.tracking.sidecar import sidecar_for

    with RichDisplay(console) as display:
        if resume is None:
            folder = out or directory.fresh(settings.seed)
            summary = training.train(settings, folder, display, sidecar_for)
        else:
            folder, summary = resume, training.resume(resume, display, where, trust, sidecar_for)
    print_summary(console, folder, summary, bool(directory.untrusted_code(settings)))


def _placed(
    read: Callable[[list[str]], configuration.Config],
    gpus: int | None,
    engines: int | None,
    learners: int | None,
    tensor_parallel: int | None,
    device: str | None,
) -> tuple[list[str], configuration.Config]:
    """The placement as overrides, and the configuration with them, which `read` gives."""
    undecided = gpus is not None and gpus > 1 and engines is None and tensor_parallel is None
    where = placement.overrides(gpus, engines, learners, tensor_parallel, device, vllm=not undecided)
    if undecided and _vllm_serves(read(where), gpus or 0):  # asked without engines, which some settings exclude
        where = placement.overrides(gpus, engines, learners, tensor_parallel, device)
    if (parallel := read(where).engines.tensor_parallel) > 1:  # perhaps by the configuration
        where = placement.overrides(gpus, engines, learners, parallel, device)
    return where, read(where)


def _vllm_serves(settings: configuration.Config, gpus: int) -> bool:
    """Whether vLLM is installed and serves the model on GPUs; if not, print why and what happens instead."""
    from sacglam.resolve import why_no_vllm

    why = why_no_vllm(settings)
    if why:
        print_plain(errors, f"no engines: {why}; a learner rank on each of the {gpus} GPUs also scores")
    return why is None


def _dry_run(settings: configuration.Config) -> None:
    """Print the placement at once and the forecast after a trial; exit with 1 if the run could not start here."""
    from sacglam.tools.dry_run import report
    from sacglam.tools.dry_run.forecast import forecast, placed

    settled, where = placed(settings)
    print_plain(console, where.describe())
    with RichDisplay(errors) as display:
        predicted = forecast(settled, where, display)
    report.show(console, predicted)
    raise typer.Exit(1 if predicted.missing else 0)


def profile(
    sources: Annotated[
        list[Path] | None,
        config_argument("Configurations and run directories to compare (default: quickstart).", "[CONFIG|RUN]..."),
    ] = None,
    intervals: Annotated[int, typer.Option(help="Training intervals to measure.", min=1)] = 10,
    set_: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="New folder to write to (default: one in profiles/).")] = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Profile training: time by phase.

    Runs the same loop as `sacglam train`, without evaluations or checkpoints, and skips the first intervals. A RUN
    continues from its newest checkpoint; its folder is not changed. Writes profile.json and trace.json, which
    opens at https://ui.perfetto.dev.

    \b
    Examples:
      sacglam profile
      sacglam profile quickstart runs/my-run --intervals 5
      sacglam profile --set device=cpu --out where-it-goes
    """
    from sacglam.tools.profile import report
    from sacglam.tools.profile.measure import measure, sources_of

    found = sources_of(sources or [configuration.QUICKSTART], set_ or [], trust)
    folder = out or directory.fresh(found[0].config.seed, Path("profiles"))
    directory.check_empty(folder)
    with redirect_stdout(sys.stderr), RichDisplay(errors) as display:  # what environments print is no result
        measured = {source.label: measure(source, intervals, display) for source in found}
    profiles = [profile for profile, _ in measured.values()]
    report.write(folder, profiles, {label: events for label, (_, events) in measured.items()})
    if as_json:
        print(json.dumps([asdict(profile) for profile in profiles]))
        return
    report.show(console, profiles)
    print_plain(console, f"{folder}: profile.json, trace.json (open it at https://ui.perfetto.dev)")


def pretrain(
    folder: Annotated[Path, typer.Argument(help="New folder to write the model to.", metavar="DIR")],
    env: Annotated[
        str,
        typer.Option(
            help="Environment whose texts the model learns: a name, module:factory, gymnasium:ID or openenv:URL.",
            metavar="NAME",
        ),
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Option of env or prompt, such as env.options.bits=4. Repeatable.", metavar="KEY=VALUE"
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option(help="Maximum number of updates; fewer once the model matches words.", min=1)
    ] = 4000,
    seed: Annotated[int, typer.Option(help="Seed for the corpus and the initial weights.", min=0)] = 0,
) -> None:
    """Pre-train a tiny language model on an environment's words and prompts, but not on how to win.

    The model reads random play with unrelated goals until it can tell which action contains a given word, in one to
    five minutes, and gets its own tokenizer. Use it with --set model.name=DIR.

    \b
    Examples:
      sacglam pretrain house-model --env house:House --set env.options.max_steps=4
      sacglam train --set env.name=house:House --set model.name=house-model
    """
    given = ["env.reward=environment", *settings_of(set_, "env", "prompt")]  # any rewards will do: it ignores them
    source = configuration.load(None, [*given, f"env.name={env}"])
    directory.check_empty(folder)

    from sacglam import cpu
    from sacglam.collector import build_env
    from sacglam.tools.pretraining import corpus, recipes, train

    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed, which transformers loads, warns of no GPU
    cpu.prepare(1)  # more would gain nothing: the model is 96 wide
    environment = build_env(source)
    settings = recipes.PretrainSettings(seed=seed, steps=steps)
    with write_explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        folder.rmdir()  # refuses one that holds files, and leaves nothing behind if interrupted
    with RichDisplay(console) as display:
        display.stage("random play", corpus.PLAYED_STEPS)
        rng = Random(seed)
        played, held_out = corpus.random_play(environment, rng, display.advance)
        draw = corpus.env_documents(environment, played, source.prompt, rng)
        questions = corpus.questions(held_out, Random(seed))
        made = train.pretrain(folder, recipes.TinyModel, settings, draw, display, questions)
    print_plain(console, f"the model is in {folder}; {made}")
