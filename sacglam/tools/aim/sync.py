"""A run's files into Aim: all at once for `sacglam aim-import`, line by line while the run trains."""

from __future__ import annotations

import fcntl
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sacglam.errors import SacglamError, TrackingError
from sacglam.runs.directory import RunDirectory
from sacglam.tools.aim import records as points
from sacglam.tools.aim.repository import AimRun

_BESIDE = ("finished", "seed", "threads", "device", "platform", "versions", "seconds", "success_random", "spl_random")
_POLL_S = 0.2
_WAIT_S = 1.0
_NICENESS = 10
_PATIENCE_S = 30.0  # for the sidecar of a run that was killed a moment ago


class Tail:
    """The whole lines that a growing file has got since it was last read."""

    def __init__(self, file: Path) -> None:
        """Begins at the start; the file need not exist yet."""
        self._file = file
        self._offset = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self._file.exists():
            return
        with self._file.open("rb") as opened:
            opened.seek(self._offset)
            for line in opened:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield json.loads(line)


def fill(
    directory: RunDirectory,
    repo: Path,
    wait: Callable[[], bool] = lambda: False,
    advance: Callable[[int], None] = lambda lines: None,
    patience_s: float = 5.0,
) -> str:
    """Write the run into the Aim repository in `repo`, under the hash in its `aim.json` if there is one; the hash.

    After all lines are read, `wait` returns True when there may be more, and False when there will be none: then comes
    what is known at the end. Points that are in Aim already are replaced, so it can be done again at any time.
    `advance` is told the number of lines done. Another writer of the run is given `patience_s` to end.

    Raises:
        TrackingError: Aim is not installed, its repository is locked, full or broken, or the run has another writer.
    """
    with _sole_writer(directory, patience_s):
        config, known = directory.config(), directory.aim()
        run = AimRun(repo, known["hash"] if known else None)
        directory.write_aim(run.hash, repo)
        algorithm = points.algorithm(config)
        run.describe(directory.root.resolve().name, config.env.name, algorithm)
        run.set_params({"algorithm": algorithm, "hparams": config.model_dump(mode="json")})
        _follow(run, directory, wait, advance)
        _conclude(run, directory)
        run.close()
        return run.hash


@contextmanager
def _sole_writer(directory: RunDirectory, patience_s: float) -> Iterator[None]:
    """Hold the run against other writers, by a lock that ends with this process.

    Aim has a lock of its own, but the filelock of today takes what Aim writes into it for damaged, and breaks it.
    """
    deadline = time.monotonic() + patience_s
    with directory.config_file.open("r+") as held:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TrackingError(
                        f"another process is writing the run at {directory.root} into Aim: its training, or an import. "
                        "It locks the run until it ends; wait for that"
                    ) from None
                time.sleep(_POLL_S)
        yield


def _follow(run: AimRun, directory: RunDirectory, wait: Callable[[], bool], advance: Callable[[int], None]) -> None:
    metrics, samples = Tail(directory.metrics_file), Tail(directory.samples_file)
    done = 0
    more = True
    while more:
        more = wait()  # asked first, so that what was written before its answer is read
        for line in metrics:
            run.track(points.of_metrics(line))
            done += 1
            advance(done)
        for line in samples:
            run.track(points.of_samples(line))


def _conclude(run: AimRun, directory: RunDirectory) -> None:
    """What stands in the summary, and the curves."""
    summary: Mapping[str, Any] = directory.summary() or {}
    run.set_params({"summary": {name: summary[name] for name in _BESIDE if summary.get(name) is not None}})
    run.track(points.of_summary(summary))
    if directory.curves.exists():
        run.track([points.Point("curves", points.Picture(directory.curves), int(summary.get("env_steps", 0)), {})])


def main() -> None:
    """Fill Aim from a run's files until the input ends; a failure is one line on what was the standard output."""
    os.nice(_NICENESS)
    reply = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Aim may print, and nobody reads

    def wait() -> bool:
        ended, _, _ = select.select([sys.stdin], [], [], _WAIT_S)
        return not ended

    root, repo = map(Path, sys.argv[1:])
    try:
        fill(RunDirectory.open(root), repo, wait, patience_s=_PATIENCE_S)
    except Exception as error:  # the training's user reads one line, whatever it is
        reply.write(str(error) if isinstance(error, SacglamError) else f"{type(error).__name__}: {error}")
        reply.flush()
        os._exit(1)  # Aim's own ending waits for ever where it cannot write


if __name__ == "__main__":
    main()
