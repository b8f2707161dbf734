"""The command line. Imports torch only inside the commands that need it."""

from __future__ import annotations

import os
import sys

import typer

from sacglam.cli import about, agents, aim, train
from sacglam.cli.common import errors
from sacglam.errors import SacglamError, TrackingError
from sacglam.tools.experiments import commands as experiments

app = typer.Typer(
    name="sacglam",
    help="Reinforcement learning of LLM agents that choose among candidate actions (SAC-GLAM).\n\n"
    "Start with [bold]sacglam train[/bold]: it trains the built-in model on Playground-Text and tells what to do next.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for command in (
    train.train,
    agents.evaluate,
    agents.play,
    experiments.compare,
    experiments.ablate,
    train.profile,
    aim.ui,
    aim.aim_import,
    about.envs,
    about.doctor,
    agents.export,
    train.pretrain,
):
    app.command()(command)


def main() -> None:
    """Run the command line; errors meant for the user are printed, not raised."""
    try:
        app()
    except SacglamError as error:
        _say(str(error))
        if isinstance(error, TrackingError):
            os._exit(1)  # Aim's own ending waits for ever where it cannot write
        sys.exit(1)
    except Exception as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, by its name, since torch may not be imported
            raise
        _say(
            f"the GPU has too little memory: {error}\nTake smaller passes (algo.micro_batch_size), recompute"
            " activations (model.gradient_checkpointing=true), or hold the base in fewer bits (model.dtype=bfloat16, "
            "model.quantize=nf4). `sacglam train --dry-run` tells the memory of each part beforehand. A run that has a "
            "checkpoint also goes on elsewhere: sacglam train --resume RUN --gpus N"
        )
        sys.exit(1)


def _say(message: str) -> None:
    errors.print("[bold red]error:[/bold red]", end=" ")
    errors.print(message, markup=False, highlight=False, soft_wrap=True)
