"""The command line. Imports torch only inside the commands that need it."""

import os
import signal
import sys
import warnings
from typing import Any

import typer

from sacglam.cli import agents, experiments, tools, train
from sacglam.cli.display import errors, print_plain
from sacglam.errors import SacglamError, TrackingError, memory_explained

app = typer.Typer(
    name="sacglam",
    help="Reinforcement learning for LLM agents that choose among candidate actions (SAC-GLAM).\n\n"
    "Start with [bold]sacglam train[/bold]: it trains the built-in model on Playground-Text and says what to do next.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for command in (
    train.train,
    agents.evaluate,
    agents.play,
    agents.serve,
    agents.collect,
    experiments.compare,
    train.profile,
    tools.ui,
    tools.track,
    tools.envs,
    tools.serve_env,
    tools.doctor,
    agents.export,
    agents.push,
    train.pretrain,
):
    app.command()(command)


@app.callback()
def _on_interrupt(context: typer.Context) -> None:
    """Ctrl-C ends `train` at once until the run handles it; other commands get Python's KeyboardInterrupt."""
    if context.invoked_subcommand != "train":
        signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> None:
    """Run the command line. Prints errors and warnings meant for the user as text."""
    show = warnings.showwarning

    def show_plainly(message: Warning | str, category: type[Warning], *place: Any, **others: Any) -> None:
        if category is UserWarning:
            print_plain(errors, f"Warning: {message}")
        else:
            show(message, category, *place, **others)

    warnings.showwarning = show_plainly
    try:
        with memory_explained():
            app()
    except SacglamError as error:
        _fail(str(error))
        if isinstance(error, TrackingError):
            os._exit(1)  # Aim's exit handlers hang if it cannot write
        sys.exit(1)
    except OSError as error:  # such as a file name that is too long
        if error.filename is None:
            raise
        _fail(f"cannot use {error.filename}: {error.strerror}")
        sys.exit(1)


def _fail(message: str) -> None:
    errors.print("[bold red]error:[/bold red]", end=" ")
    print_plain(errors, message)
