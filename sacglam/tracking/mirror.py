"""Aim while a run trains: a process of its own that reads the run's files, so that nothing of Aim can harm the run.

The training writes files and knows nothing more. The process sees the end of its input when the training ends in
whatever way, reads what is left and ends, too.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from sacglam.config import TrackingConfig
from sacglam.errors import SacglamError, TrackingError
from sacglam.runs.directory import RunDirectory
from sacglam.runs.display import Display
from sacglam.tracking import aim
from sacglam.tracking.filling import fill

_POLL_S = 1.0
_FINISH_S = 60.0
_NICENESS = 10
_PATIENCE_S = 30.0  # for the mirror of a training that was killed a moment ago


class Mirror(Protocol):
    """What shows a run elsewhere while it trains. Nothing here raises, and only `close` may take time."""

    def start(self) -> None:
        """Begin, once the run's folder is there and holds what it goes on from."""

    def check(self) -> None:
        """Tell the user, once, if it has failed."""

    def close(self) -> None:
        """Let it read the rest and end; may be called again."""


class NoMirror:
    """Shows the run nowhere."""

    def start(self) -> None:
        """Nothing."""

    def check(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class AimMirror:
    """Shows the run in Aim, by a process of its own."""

    def __init__(self, root: Path, repo: Path, display: Display) -> None:
        """`root` is the run's folder, `repo` the one that holds the Aim repository."""
        self._root = root
        self._repo = repo
        self._display = display
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process; a session of its own keeps it from the Ctrl-C that ends the training."""
        command = [sys.executable, "-m", "sacglam.tracking.mirror", str(self._root), str(self._repo)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        except OSError as error:
            self._give_up(f"its process cannot be started: {error}")

    def check(self) -> None:
        """Notice a process that has ended before the training has."""
        if self._process and self._process.poll() is not None:
            self._collect(self._process)

    def close(self) -> None:
        """Wait for the last lines to be written, a minute at most."""
        if not self._process:
            return
        process = self._process
        assert process.stdin
        process.stdin.close()
        try:
            try:
                process.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                self._display.stage("handing the rest to Aim", 1)
                process.wait(_FINISH_S)
        except subprocess.TimeoutExpired:
            self._give_up(f"it took more than {_FINISH_S:.0f} s to end")
        else:
            self._collect(process)
        finally:
            if process.poll() is None:
                process.kill()

    def _collect(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout
        said = process.stdout.read().strip()
        self._process = None
        if process.returncode < 0:
            self._give_up(f"its process died of signal {-process.returncode}")
        elif process.returncode:
            self._give_up(said or f"its process ended with {process.returncode}")

    def _give_up(self, why: str) -> None:
        self._process = None
        self._display.note(
            f"Aim does not show this run: {why}. The training does not need it, and the run's files hold everything: "
            f"sacglam aim-import {self._root}"
        )


def mirror_of(directory: RunDirectory, config: TrackingConfig, display: Display) -> Mirror:
    """What shows the run in `directory`, as `config` asks for.

    Raises:
        TrackingError: `tracking.aim` is true and Aim is not installed.
    """
    if config.aim is True and not aim.installed():
        raise TrackingError(f"tracking.aim is true, but Aim is not installed; {aim.INSTALL}, or set it to auto")
    if config.aim is False or not aim.installed():
        return NoMirror()
    return AimMirror(directory.root, repo_of(directory, config), display)


def repo_of(directory: RunDirectory, config: TrackingConfig) -> Path:
    """The folder that holds the Aim repository of a run: by default the one that holds the run's folder."""
    return Path(config.repo) if config.repo else directory.root.resolve().parent


def main() -> None:
    """Fill Aim from a run's files until the input ends; a failure is one line on what was the standard output."""
    os.nice(_NICENESS)
    reply = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Aim may print, and nobody reads

    def wait() -> bool:
        ended, _, _ = select.select([sys.stdin], [], [], _POLL_S)
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
