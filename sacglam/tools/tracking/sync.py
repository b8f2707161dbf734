"""Copies a run's files into a tracker: all at once for `sacglam track`, line by line while the run trains.

All trackers but Aim take only numbers. A tracker's package is imported only when a run is written into it. Writing a
run again, from its first line, adds nothing to any of them.
"""

import os
import re
import secrets
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from sacglam import files
from sacglam.errors import SacglamError, TrackingError
from sacglam.runs.directory import RunDirectory, locked_folder
from sacglam.runs.logs import open_log
from sacglam.tools.tracking import records, sidecar
from sacglam.tools.tracking.aim import AimRun
from sacglam.tools.tracking.records import AXES, Point, algorithm, of_summary

_WAIT_S = 1.0
_NICENESS = 10
_PATIENCE_S = 10.0  # to wait for the sidecar of a run that was just killed, which writes the rest and ends
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
        """Add the evaluations before and after training, once both are there, since nothing can be replaced later."""
        ends = of_summary(summary) if summary.get("finished") else []
        for step in sorted({point.step for point in ends}):
            self.add([point for point in ends if point.step == step])
        self.close()


def _wandb(directory: RunDirectory, repo: Path, known: Sequence[str]) -> Numbers:
    """A row for each line. Rows that the server already has are not sent again; an offline run is replaced."""
    import wandb

    config, last = directory.config(), next(iter(known), None)
    for folder in (repo / "wandb").glob(f"offline-run-*-{last}") if last else ():
        shutil.rmtree(folder)
    run = wandb.init(
        project=_PROJECT,
        dir=repo,
        id=last,
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


def _trackio(directory: RunDirectory, repo: Path, known: Sequence[str]) -> Numbers:
    """Trackio's local database, in the place that TRACKIO_DIR names; a run that it already has is replaced."""
    import trackio

    with suppress(ValueError):  # there is no project yet
        for run in trackio.Api().runs(_PROJECT):
            if run.name in known:
                run.delete()
    config, name = directory.config(), directory.root.resolve().name
    unique = known[0] if known else f"{re.sub(r'[^-.0-9A-Z_a-z]+', '-', name)}-{secrets.token_hex(4)}"
    settings = {"algorithm": algorithm(config), **config.model_dump(mode="json")}
    run = trackio.init(
        _PROJECT, unique, group=config.env.name, config=settings, embed=False, auto_log_gpu=False, auto_log_cpu=False
    )
    return Numbers(unique, lambda numbers, step: run.log(dict(numbers), step=step), run.finish)


def _tensorboard(directory: RunDirectory, repo: Path, known: Sequence[str]) -> Numbers:
    """Event files in tensorboard/NAME, which replace those of an earlier import."""
    from tensorboard.summary import Writer

    root, repo = directory.root.resolve(), repo.resolve()
    name = root.relative_to(repo).as_posix() if root.is_relative_to(repo) else "-".join(root.parts[1:])
    folder = repo / "tensorboard" / name
    for events in folder.glob("events.out.tfevents.*"):
        events.unlink()
    writer = Writer(str(folder))

    def log(numbers: Mapping[str, float], step: int) -> None:
        for label, value in numbers.items():
            writer.add_scalar(label, value, step)
        writer.flush()

    return Numbers(name, log, writer.close)


OPENED: Mapping[str, Callable[[RunDirectory, Path, Sequence[str]], AimRun | Numbers]] = {
    "aim": AimRun,
    "wandb": _wandb,
    "trackio": _trackio,
    "tensorboard": _tensorboard,
}
"""Opens a run in a tracker whose files are in a folder; the last argument has its `id`, if the tracker has it."""


class Tail:
    """The complete lines added to a growing log since the last iteration, as points; damaged ones are counted."""

    def __init__(self, file: Path, points: Callable[[Mapping[str, Any]], list[Point]]) -> None:
        """`points` raises `ValueError` for a line that is damaged."""
        self._file, self._points, self._offset, self.damaged = file, points, 0, 0

    def __iter__(self) -> Iterator[list[Point]]:
        with open_log(self._file) as log:
            log.seek(self._offset)
            for line in log:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                try:
                    yield self._points(files.parse_json(line, files.OBJECT))
                except ValueError:
                    self.damaged += 1


def fill(
    name: str,
    directory: RunDirectory,
    repo: Path,
    wait: Callable[[], bool] = lambda: False,
    advance: Callable[[int], None] = lambda lines: None,
) -> str:
    """Write the run into a tracker whose files are in `repo`, and return its id there (kept in `NAME.json`).

    `wait` is called before the files are read each time, and returns whether more lines may follow; after the last one
    the evaluations of the summary are added. It is safe to repeat: what is there already is replaced or skipped.
    `advance` is called with the number of lines done.

    Raises:
        TrackingError: the tracker is not installed, or cannot write.
        RunDirectoryError: the run has another writer.
    """
    if not sidecar.installed(name):
        raise TrackingError(f"{sidecar.TITLES[name]} is not installed here; {sidecar.install(name)}")
    metrics = Tail(directory.metrics_file, records.of_metrics)
    samples = Tail(directory.samples_file, records.of_samples)
    busy = (
        f"another process is writing the run at {directory.root} into {sidecar.TITLES[name]}, while it trains or by an "
        "import; wait for it to end"
    )
    # Aim has a lock of its own, but current versions of filelock take its contents for damaged and break it.
    with locked_folder(directory.root, busy, f".{name}.lock", _PATIENCE_S), sidecar.explained(name, repo):
        run = OPENED[name](directory, repo, sidecar.ids(directory, name))
        sidecar.write_id(directory, name, run.id)
        done, more = 0, True
        while more:
            more = wait()  # before reading, so that nothing written before the end is missed
            for points in metrics:
                run.add(points)
                done += 1
                advance(done)
            for points in samples:
                run.add(points)
        run.end(directory.summary() or {})
    if damaged := metrics.damaged + samples.damaged:
        warnings.warn(f"{damaged} damaged lines of metrics.jsonl and samples.jsonl were left out", stacklevel=1)
    return run.id


def main() -> None:
    """Fill a tracker from a run's files until standard input ends; a failure prints one line to standard output."""
    os.nice(_NICENESS)
    reply = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # hides whatever the tracker prints

    ended = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    name, root, repo = sys.argv[1:]
    try:
        run = RunDirectory.open(Path(root), trusted=True)
        fill(name, run, Path(repo), lambda: not ended.wait(_WAIT_S))
    except Exception as error:  # the run prints one line about it, whatever it is
        reply.write(str(error) if isinstance(error, SacglamError) else f"{type(error).__name__}: {error}")
        reply.flush()
        os._exit(1)  # Aim's exit handlers hang if it cannot write


if __name__ == "__main__":
    main()
