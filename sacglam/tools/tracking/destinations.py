"""A run in each tracker; all but Aim take numbers alone. Their packages are imported when a run is written into them.

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

from sacglam.runs.directory import RunDirectory
from sacglam.tools.tracking.aim import AimRun
from sacglam.tools.tracking.records import AXES, Point, algorithm, of_summary

_PROJECT = "sacglam"
Log = Callable[[Mapping[str, float], int], Any]


@dataclass(frozen=True)
class Numbers:
    """A run in a tracker of numbers. `log` adds values by name at an environment step."""

    id: str
    log: Log
    close: Callable[[], Any]

    def add(self, points: list[Point]) -> None:
        """Add the numbers among the points, under flat names such as success/eval/overall."""
        numbers = {
            "/".join([point.name, *(() if point.name in AXES else point.context.values())]): point.value
            for point in points
            if isinstance(point.value, float)
        }
        if numbers:
            self.log(numbers, points[0].step)

    def end(self, summary: Mapping[str, Any]) -> None:
        """Add the evaluations before and after training, once there are both, since nothing can be replaced."""
        ends = of_summary(summary) if summary.get("finished") else []
        for step in sorted({point.step for point in ends}):
            self.add([point for point in ends if point.step == step])
        self.close()


def _wandb(directory: RunDirectory, repo: Path, known: str | None) -> Numbers:
    """A row for each line. The rows that a server has are not sent again; an offline run is replaced."""
    import wandb

    config = directory.config()
    for folder in (repo / "wandb").glob(f"offline-run-*-{known}") if known else ():
        shutil.rmtree(folder)
    run = wandb.init(
        project=_PROJECT,
        dir=repo,
        id=known,
        name=directory.root.resolve().name,
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

    return Numbers(str(run.id), log, run.finish)


def _trackio(directory: RunDirectory, repo: Path, known: str | None) -> Numbers:
    """Trackio's local database, wherever TRACKIO_DIR says; a run that it has is replaced."""
    import trackio

    with suppress(ValueError):  # there is no project yet
        for run in trackio.Api().runs(_PROJECT):
            if run.name == known:
                run.delete()
    config, name = directory.config(), directory.root.resolve().name
    unique = known or f"{re.sub(r'[^-.0-9A-Z_a-z]+', '-', name)}-{secrets.token_hex(4)}"
    settings = {"algorithm": algorithm(config), **config.model_dump(mode="json")}
    run = trackio.init(
        _PROJECT, unique, group=config.env.name, config=settings, embed=False, auto_log_gpu=False, auto_log_cpu=False
    )
    return Numbers(unique, lambda numbers, step: run.log(dict(numbers), step=step), run.finish)


def _tensorboard(directory: RunDirectory, repo: Path, known: str | None) -> Numbers:
    """Event files in tensorboard/NAME, which replace those of an earlier import."""
    from tensorboard.summary import Writer

    name = directory.root.resolve().name
    folder = repo / "tensorboard" / name
    for events in folder.glob("events.out.tfevents.*"):
        events.unlink()
    writer = Writer(str(folder))

    def log(numbers: Mapping[str, float], step: int) -> None:
        for label, value in numbers.items():
            writer.add_scalar(label, value, step)
        writer.flush()

    return Numbers(name, log, writer.close)


OPENED: Mapping[str, Callable[[RunDirectory, Path, str | None], AimRun | Numbers]] = {
    "aim": AimRun,
    "wandb": _wandb,
    "trackio": _trackio,
    "tensorboard": _tensorboard,
}
"""Opens a run in a tracker whose files are in a folder; the last argument is its `id`, if the tracker has it."""
