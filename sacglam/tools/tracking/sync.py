"""Copies a run's files into a tracker: all at once for `sacglam track`, line by line while the run trains."""

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sacglam import files
from sacglam.errors import SacglamError, TrackingError
from sacglam.runs.directory import RunDirectory, locked_folder
from sacglam.runs.logs import open_log
from sacglam.tools.tracking import records, sidecar
from sacglam.tools.tracking.destinations import OPENED
from sacglam.tools.tracking.records import Point

_WAIT_S = 1.0
_NICENESS = 10
_PATIENCE_S = 10.0  # with the sidecar of a run that was killed a moment ago, which writes the rest and ends


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
    """Write the run into a tracker whose files are in `repo`, and return what it is known by there (its `NAME.json`).

    `wait` is called before each reading of the files, and returns whether more lines may follow; after the last one
    the evaluations of the summary are added. What is there already is replaced or left out, so it is safe to repeat.
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
        run = OPENED[name](directory, repo, sidecar.read_hash(directory, name))
        sidecar.write_hash(directory, run.id, repo, name)
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
        fill(name, run, Path(repo), lambda: not ended.wait(_WAIT_S))
    except Exception as error:  # the run prints one line about it, whatever it is
        reply.write(str(error) if isinstance(error, SacglamError) else f"{type(error).__name__}: {error}")
        reply.flush()
        os._exit(1)  # Aim's exit handlers hang if it cannot write


if __name__ == "__main__":
    main()
