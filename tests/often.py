"""`python -m tests.often train ...` is `sacglam train ...` that logs as often as runs of some hundred steps need it."""

from __future__ import annotations

from sacglam.runs.stopping import die_on_interrupt

LOG_STEPS, SAMPLES_STEPS = 32, 320
PARITY_EVERY = 2


def often(command: list[str]) -> list[str]:
    """A command of `tests.conftest.sacglam` that starts a new Python."""
    assert command[1:3] == ["-m", "sacglam"]
    return [*command[:2], "tests.often", *command[3:]]


def log_often() -> None:
    """Let the trainings of this process write to metrics.jsonl and samples.jsonl every so many steps."""
    from sacglam import training

    training.LOG_STEPS, training.SAMPLES_STEPS = LOG_STEPS, SAMPLES_STEPS


def main() -> None:
    """As `sacglam.__main__`."""
    die_on_interrupt()
    from sacglam import build, cli

    build.PARITY_EVERY = PARITY_EVERY
    log_often()
    cli.main()


if __name__ == "__main__":
    main()
