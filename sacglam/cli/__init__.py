"""The command line. Imports torch only inside the commands that need it."""

from __future__ import annotations

import os
import sys

import typer

from sacglam.cli import about, agents, aim, trainings
from sacglam.cli.common import errors
from sacglam.errors import SacglamError, TrackingError
from sacglam.experiments import commands as experiments

app = typer.Typer(
    name="sacglam",
    help="Reinforcement learning of LLM agents that choose among candidate actions (SAC-GLAM).\n\n"
    "Start with [bold]sacglam train[/bold]: it trains the built-in model on Playground-Text and tells what to do next.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for command in (
    trainings.train,
    agents.evaluate,
    agents.play,
    experiments.compare,
    experiments.ablate,
    trainings.profile,
    aim.ui,
    aim.aim_import,
    about.envs,
    about.doctor,
    agents.export,
    trainings.pretrain,
):
    app.command()(command)


def main() -> None:
    """Run the command line; errors meant for the user are printed, not raised."""
    try:
        app()
    except SacglamError as error:
        errors.print("[bold red]error:[/bold red]", end=" ")
        errors.print(str(error), markup=False, highlight=False, soft_wrap=True)
        if isinstance(error, TrackingError):
            os._exit(1)  # Aim's own ending waits for ever where it cannot write
        sys.exit(1)
