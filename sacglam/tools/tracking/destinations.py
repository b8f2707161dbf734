"""Trackers that take numbers: Weights & Biases, Trackio and TensorBoard, each imported when a run is written into it.

Writing a run again from its first line adds nothing to any of them.
"""

import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from sacglam.config import Config
from sacglam.tools.tracking.records import AXES, Point, algorithm

_PROJECT = "sacglam"
Log = Callable[[Mapping[str, float], int], Any]


@dataclass(frozen=True)
class Destination:
    """A run in a tracker, which knows it by its `id`. `log` adds values by name at an environment step."""

    id: str
    log: Log
    close: Callable[[], Any]

    def add(self, points: list[Point]) -> None:
        """Add the numbers among the points of a line."""
        numbers = {_label(point): point.value for point in points if isinstance(point.value, float)}
        if numbers:
            self.log(numbers, points[0].step)


def _label(point: Point) -> str:
    """A flat name, such as success/eval/overall."""
    return "/".join([point.name, *(() if point.name in AXES else point.context.values())])


def _wandb(name: str, config: Config, repo: Path, known: str | None) -> Destination:
    """A row for each line. The rows that a server has are not sent again; an offline run is replaced."""
    import wandb

    for folder in (repo / "wandb").glob(f"offline-run-*-{known}") if known else ():
        shutil.rmtree(folder)
    run = wandb.init(
        project=_PROJECT,
        dir=repo,
        id=known,
        name=name,
        group=config.env.name,
        tags=[algorithm(config)],
        config=config.model_dump(mode="json"),
        resume="allow",
        settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
    )
    run.define_metric("*", step_metric="env_steps")
    sent, rows = 0 if run.offline else run.step, count()

    def log(numbers: Mapping[str, float], step: int) -> None:
        if next(rows) >= sent:
            run.log({**numbers, "env_steps": step})

    return Destination(str(run.id), log, run.finish)


def _trackio(name: str, config: Config, repo: Path, known: str | None) -> Destination:
    """Trackio's local database, wherever TRACKIO_DIR says; a run that it has is replaced."""
    import trackio

    with suppress(ValueError):  # there is no project yet
        for run in trackio.Api().runs(_PROJECT):
            if run.name == known:
                run.delete()
    unique = known or f"{re.sub(r'[^-.0-9A-Z_a-z]+', '-', name)}-{secrets.token_hex(4)}"
    settings = {"algorithm": algorithm(config), **config.model_dump(mode="json")}
    run = trackio.init(
        _PROJECT, unique, group=config.env.name, config=settings, embed=False, auto_log_gpu=False, auto_log_cpu=False
    )
    return Destination(unique, lambda numbers, step: run.log(dict(numbers), step=step), run.finish)


def _tensorboard(name: str, config: Config, repo: Path, known: str | None) -> Destination:
    """Event files in tensorboard/NAME, which replace those of an earlier import."""
    from tensorboard.summary import Writer

    folder = repo / "tensorboard" / name
    for events in folder.glob("events.out.tfevents.*"):
        events.unlink()
    writer = Writer(str(folder))

    def log(numbers: Mapping[str, float], step: int) -> None:
        for label, value in numbers.items():
            writer.add_scalar(label, value, step)
        writer.flush()

    return Destination(name, log, writer.close)


OPENED: Mapping[str, Callable[[str, Config, Path, str | None], Destination]] = {
    "wandb": _wandb,
    "trackio": _trackio,
    "tensorboard": _tensorboard,
}
"""Opens a run of a name, with its settings, in a folder; the last argument is its `id`, if the tracker has it."""
