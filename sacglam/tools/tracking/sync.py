"""Copies a run's files into a tracker: all at once for `sacglam track`, line by line while the run trains."""

import io
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from sacglam import files
from sacglam.errors import SacglamError, TrackingError, write_explained
from sacglam.runs.directory import RunDirectory
from sacglam.runs.logs import open_log
from sacglam.tools.aim.repository import opened_run, track
from sacglam.tools.tracking import records, sidecar
from sacglam.tools.tracking.destinations import OPENED
from sacglam.tools.tracking.records import Point

Add = Callable[[list[Point]], None]
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
    name: str,
    directory: RunDirectory,
    repo: Path,
    wait: Callable[[], bool] = lambda: False,
    advance: Callable[[int], None] = lambda lines: None,
    patience_s: float = 5.0,
) -> str:
    """Write the run into a tracker whose files are in `repo`, and return what it is known by there (its `NAME.json`).

    `wait` is called before each reading of the files, and returns whether more lines may follow; after the last one
    the evaluations of the summary are added. What is there already is replaced or left out, so it is safe to repeat.
    `advance` is called with the number of lines done. Another writer of the run has `patience_s` to finish.

    Raises:
        TrackingError: the tracker is not installed, cannot write, or the run has another writer.
    """
    if not sidecar.installed(name):
        raise TrackingError(f"{sidecar.TITLES[name]} is not installed here; {sidecar.install(name)}")
    follow = partial(_follow, directory, wait, advance)
    with _sole_writer(directory, name, patience_s):
        return _fill_aim(directory, repo, follow) if name == "aim" else _fill(name, directory, repo, follow)


def _fill_aim(directory: RunDirectory, repo: Path, follow: Callable[[Add], None]) -> str:
    with opened_run(repo, sidecar.read_hash(directory)) as run:
        config = directory.config()
        algorithm, run_hash = records.algorithm(config), str(run.hash)
        sidecar.write_hash(directory, run_hash, repo)
        run.name, run.experiment = directory.root.resolve().name, config.env.name
        if algorithm not in run.tags:
            run.add_tag(algorithm)
        run["algorithm"], run["hparams"] = algorithm, config.model_dump(mode="json")
        follow(partial(track, run))
        summary: Mapping[str, Any] = directory.summary() or {}
        run["summary"] = {name: summary[name] for name in _PARAMS if summary.get(name) is not None}
        track(run, records.of_summary(summary))
        if image := _image(directory.curves):
            track(run, [Point("curves", image, int(summary.get("env_steps", 0)), {})])
    return run_hash


def _fill(name: str, directory: RunDirectory, repo: Path, follow: Callable[[Add], None]) -> str:
    try:
        return _filled(name, directory, repo, follow)
    except SacglamError:
        raise
    except Exception as error:  # their libraries have no base class for errors
        message = (str(error).strip().splitlines() or ["no message"])[0][:200]
        raise TrackingError(f"{sidecar.TITLES[name]} cannot take the run: {type(error).__name__}: {message}") from error


def _filled(name: str, directory: RunDirectory, repo: Path, follow: Callable[[Add], None]) -> str:
    run = OPENED[name](directory.root.resolve().name, directory.config(), repo, sidecar.read_hash(directory, name))
    sidecar.write_hash(directory, run.id, repo, name)
    follow(run.add)
    summary: Mapping[str, Any] = directory.summary() or {}
    ends = records.of_summary(summary) if summary.get("finished") else []
    for step in sorted({point.step for point in ends}):
        run.add([point for point in ends if point.step == step])
    run.close()
    return run.id


@contextmanager
def _sole_writer(directory: RunDirectory, name: str, patience_s: float) -> Iterator[None]:
    """Keep other writers from the run, by a lock that ends with this process.

    Aim has a lock of its own, but current versions of filelock take its contents for damaged and break it.
    """
    deadline = time.monotonic() + patience_s
    file = directory.root / f".{name}.lock"
    with write_explained(file):
        held = files.opened(file, "ab")
    with held:
        while True:
            try:
                files.lock(held)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TrackingError(
                        f"another process is writing the run at {directory.root} into {sidecar.TITLES[name]}, while "
                        "it trains or by an import; wait for it to end"
                    ) from None
                time.sleep(_POLL_S)
        yield


def _follow(directory: RunDirectory, wait: Callable[[], bool], advance: Callable[[int], None], add: Add) -> None:
    metrics = Tail(directory.metrics_file, records.of_metrics)
    samples = Tail(directory.samples_file, records.of_samples)
    done, more = 0, True
    while more:
        more = wait()  # before reading, so that nothing written before the end is missed
        for points in metrics:
            add(points)
            done += 1
            advance(done)
        for points in samples:
            add(points)
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
    """Fill a tracker from a run's files until standard input ends; a failure prints one line to standard output."""
    if sys.platform != "win32":
        os.nice(_NICENESS)
    reply = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever it prints

    ended = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    name, root, repo = sys.argv[1:]
    try:
        run = RunDirectory.open(Path(root), trusted=True)
        fill(name, run, Path(repo), lambda: not ended.wait(_WAIT_S), patience_s=_PATIENCE_S)
    except Exception as error:  # the run prints one line about it, whatever it is
        reply.write(str(error) if isinstance(error, SacglamError) else f"{type(error).__name__}: {error}")
        reply.flush()
        os._exit(1)  # Aim's exit handlers hang if it cannot write


if __name__ == "__main__":
    main()
