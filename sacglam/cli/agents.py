"""Commands that ask a trained agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from sacglam.cli.common import DeviceOption, RunArgument, SeedOption, console, errors


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
    from sacglam.cli.display import RichDisplay
    from sacglam.evaluate import evaluate as measure
    from sacglam.policy import SamplingPolicy, greedy

    agent = load_agent(run, device)
    rng = np.random.default_rng(seed)
    with RichDisplay(errors) as display:
        display.stage(f"evaluating {goals} goals", episodes)
        found = measure(
            lambda: build_env(agent.config),
            agent.scorer,
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
    from sacglam.cli.display import play_episode

    play_episode(console, load_agent(run, device), goal, seed, np.random.default_rng(seed) if sample else None)


def export(run: RunArgument, folder: Annotated[Path, typer.Argument(help="Where to write.", metavar="DIR")]) -> None:
    """Write a run's agent as a peft adapter, and its critic as safetensors beside it."""
    from sacglam.agent import load_agent

    agent = load_agent(run, "cpu")
    agent.export(folder)
    console.print(f"adapter and critic of step {agent.env_steps:,} are in {folder}")
