"""The command that writes demonstrations."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sacglam import config as configuration
from sacglam.cli.agents import DeviceOption, SeedOption
from sacglam.cli.display import RichDisplay, TrustOption, console, errors, print_plain
from sacglam.cli.train import SetOption, config_argument
from sacglam.runs import directory

if TYPE_CHECKING:
    from sacglam.scoring.base import Scorer


def collect(
    out: Annotated[Path, typer.Argument(help="New file for the demonstrations, JSON lines.", metavar="OUT")],
    source: Annotated[
        Path | None, config_argument("Run or configuration that names the environment to play.", "[RUN|CONFIG]")
    ] = None,
    env: Annotated[
        str | None, typer.Option(help="Environment to play instead: one of `sacglam envs`, or package.module:factory.")
    ] = None,
    set_: SetOption = None,
    policy: Annotated[
        Literal["planner", "random", "agent"],
        typer.Option(help="The environment's expert or planner, random actions, or the agent of RUN."),
    ] = "planner",
    noise: Annotated[float, typer.Option(help="Share of actions drawn at random.", min=0.0, max=1.0)] = 0.0,
    episodes: Annotated[int, typer.Option(help="Number of episodes.", min=1)] = 200,
    success_only: Annotated[bool, typer.Option("--success-only", help="Keep only episodes that succeed.")] = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    trust: TrustOption = False,
) -> None:
    """Collect demonstrations: episodes that a run can learn from before and during training.

    \b
    Examples:
      sacglam collect demos.jsonl --env playground_simple
      sacglam collect demos.jsonl full/sac_her --noise 0.3 --episodes 1000
      sacglam collect demos.jsonl runs/my-run --policy agent --success-only
    Then:
      sacglam train --set replay.demonstrations=demos.jsonl
    """
    if (source is None) == (env is None):
        raise typer.BadParameter("expected either RUN or CONFIG, or --env NAME")
    run = source if source and source.is_dir() else None
    if policy == "agent" and not run:
        raise typer.BadParameter("--policy agent needs a RUN, whose agent plays")

    from sacglam.collector import build_env
    from sacglam.prompt import Prompt
    from sacglam.recording import record
    from sacglam.replay.demonstrations import write

    config = directory.RunDirectory.open(run, trust).config() if run else configuration.load(source)
    config = configuration.override(config, [*(set_ or []), *([f"env.name={env}"] if env else [])])
    played = record(
        lambda: build_env(config),
        _scorer(policy, run, device, trust),
        episodes,
        seed=seed,
        noise=noise,
        success_only=success_only,
        prompt=Prompt(config.prompt),
        repeats=config.env.repeats,
    )
    with RichDisplay(errors) as display:
        display.stage("collecting episodes", episodes)
        successes = write(out, played, config.env.repeats, display.advance)
    print_plain(console, f"{episodes:,} episodes, {successes:,} of them successful, are in {out}")


def _scorer(policy: str, run: Path | None, device: str, trust: bool) -> "Scorer | None":
    from sacglam.scoring.base import UniformScorer

    if run and policy == "agent":
        from sacglam.agent import load_agent

        return load_agent(run, device, trust).model
    return UniformScorer() if policy == "random" else None
