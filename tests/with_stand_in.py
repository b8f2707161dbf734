"""`python -m tests.with_stand_in train ...` is `sacglam train ...` with engines that start in seconds."""

from __future__ import annotations

import os

from sacglam.runs.stopping import die_on_interrupt
from tests.often import log_often


def stood_in(command: list[str]) -> list[str]:
    """A command of `tests.conftest.sacglam` with such engines, whose every fifth adapter passes the parity gate.

    The variable SACGLAM_TIMEOUT_S is their time-out.
    """
    assert command[1:3] == ["-m", "sacglam"]
    return [*command[:2], "tests.with_stand_in", *command[3:]]


def main() -> None:
    """As `sacglam.__main__`."""
    die_on_interrupt()
    from sacglam import build, cli

    build.ENGINE, build.PARITY_EVERY = "tests.stand_in:engine", 5
    build.TIMEOUT_S = float(os.environ.get("SACGLAM_TIMEOUT_S", build.TIMEOUT_S))
    log_often()
    cli.main()


if __name__ == "__main__":
    main()
