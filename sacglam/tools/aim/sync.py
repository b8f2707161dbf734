"""Copies a run's files into Aim: all at once for `sacglam aim-import`, line by line while the run trains."""

import fcntl
import io
import os
import select
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from sacglam import files
from sacglam.errors import SacglamError, TrackingError, write_explained
from sacglam.runs.directory import RunDirectory
from sacglam.runs.logs import open_log
from sacglam.tools.aim import records, sidecar
from sacglam.tools.aim.records import Point
from sacglam.tools.aim.repository import opened_run, track

_PARAMS = ("finished", "seed", "threads", "device", "platform", "versions", "seconds", "success_random", "spl_random")
_POLL_S = 0.2
_WAIT_S = 1.0
_LARGEST_IMAGE = 16 * files.MIB
_NICENESS = 10
_PATIENCE_S = 30.0  # for the sidecar of a run that was killed a moment ago


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
    directory: RunDirectory,
    repo: Path,
    wait: Callable[[], bool] = lambda: False,
    advance: Callable[[int], None] = lambda lines: None,
    patience_s: float = 5.0,
) -> str:
    """Write the run into the Aim repository in `repo`, and return its hash there: that of its `aim.json`, if any.

    `wait` is called before each reading of the files, and returns whether more lines may follow; after the last one
    the summary and curves are added. Existing points are replaced, so it is safe to repeat. `advance` is called with
    the number of lines done. Another writer of the run has `patience_s` to finish.

    Raises:
        TrackingError: Aim is not installed, its repository is locked, full or broken, or the run has another writer.
    """
    with _sole_writer(directory, patience_s), opened_run(repo, sidecar.read_hash(directory)) as run:
        config = directory.config()
        algorithm, run_hash = records.algorithm(config), str(run.hash)
        sidecar.write_hash(directory, run_hash, repo)
        run.name, run.experiment = directory.root.resolve().name, config.env.name
        if algorithm not in run.tags:
            run.add_tag(algorithm)
        run["algorithm"], run["hparams"] = algorithm, config.model_dump(mode="json")
        _follow(run, directory, wait, advance)
        summary: Mapping[str, Any] = directory.summary() or {}
        run["summary"] = {name: summary[name] for name in _PARAMS if summary.get(name) is not None}
        track(run, records.of_summary(summary))
        if image := _image(directory.curves):
            track(run, [Point("curves", image, int(summary.get("env_steps", 0)), {})])
    return run_hash


@contextmanager
def _sole_writer(directory: RunDirectory, patience_s: float) -> Iterator[None]:
    """Keep other writers from the run, by a lock that ends with this process.

    Aim has a lock of its own, but current versions of filelock take its contents for damaged and break it.
    """
    deadline = time.monotonic() + patience_s
    with write_explained(directory.config_file):
        held = files.opened(directory.config_file, "r+b")
    with held:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TrackingError(
                        f"another process is writing the run at {directory.root} into Aim, while it trains or by an "
                        "import; wait for it to end"
                    ) from None
                time.sleep(_POLL_S)
        yield


def _follow(run: Any, directory: RunDirectory, wait: Callable[[], bool], advance: Callable[[int], None]) -> None:
    metrics = Tail(directory.metrics_file, records.of_metrics)
    samples = Tail(directory.samples_file, records.of_samples)
    done, more = 0, True
    while more:
        more = wait()  # before reading, so that nothing written before the end is missed
        for points in metrics:
            track(run, points)
            done += 1
            advance(done)
        for points in samples:
            track(run, points)
    if damaged := metrics.damaged + samples.damaged:
        warnings.warn(f"{damaged} damaged lines of metrics.jsonl and samples.jsonl were left out", stacklevel=2)


def _image(file: Path) -> Image.Image | None:
    """A drawing; None if there is none, or it is damaged."""
    try:
        image = Image.open(io.BytesIO(files.read(file, _LARGEST_IMAGE)), formats=["PNG"])
        image.load()
        return image
    except FileNotFoundError:
        pass
    except Exception as error:  # damaged bytes make Pillow raise many types
        warnings.warn(f"{file} was left out: {error}", stacklevel=3)
    return None


def main() -> None:
    """Fill Aim from a run's files until standard input ends; a failure prints one line to standard output."""
    os.nice(_NICENESS)
    reply = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever Aim prints

    def wait() -> bool:
        ended, _, _ = select.select([sys.stdin], [], [], _WAIT_S)
        return not ended

    root, repo = map(Path, sys.argv[1:])
    try:
        fill(RunDirectory.open(root, trusted=True), repo, wait, patience_s=_PATIENCE_S)
    except Exception as error:  # the run prints one line about it, whatever it is
        reply.write(str(error) if isinstance(error, SacglamError) else f"{type(error).__name__}: {error}")
        reply.flush()
        os._exit(1)  # Aim's exit handlers hang if it cannot write


if __name__ == "__main__":
    main()
