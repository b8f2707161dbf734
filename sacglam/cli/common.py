"""What the commands share: where they print, and options that several of them take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

console = Console()
errors = Console(stderr=True)

RunArgument = Annotated[Path, typer.Argument(help="A run directory, as `sacglam train` leaves one.", metavar="RUN")]
DeviceOption = Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda or cuda:N.")]
SeedOption = Annotated[int, typer.Option(help="Seeds the episodes.", min=0)]
