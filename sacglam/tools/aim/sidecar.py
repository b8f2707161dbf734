"""Aim while a run trains: a separate process reads the run's files, so that no failure of Aim can harm the run.

The run only writes files. When it ends, in whatever way, the process sees the end of its input, copies the rest into
Aim and exits.
"""

import json
import subprocess
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter
from typing_extensions import override

from sacglam import files, subprocesses
from sacglam.config import TrackingConfig
from sacglam.errors import TrackingError, write_explained
from sacglam.runs.directory import RunDirectory
from sacglam.runs.display import Display, Tracker

INSTALL = "pip install 'sacglam[aim]'"
_PROGRAM = "sacglam.tools.aim.sync"
_QUIET_S = 1.0
_LINK = "aim.json"


class _Link(BaseModel):
    hash: Annotated[str, Field(pattern="^[0-9A-Za-z]+$")]


_LINK_FORM = TypeAdapter(_Link)


def installed() -> bool:
    """Whether Aim can be imported here."""
    return find_spec("aim") is not None


@dataclass(eq=False)
class AimSidecar(Tracker):
    """The process that copies the run in `directory` into the Aim repository in `repo`; without it, nothing is started.

    `finish_s` is how long `close` waits for the process.
    """

    directory: RunDirectory
    repo: Path | None
    display: Display
    finish_s: float = 60.0
    _process: subprocess.Popen[str] | None = field(default=None, init=False)

    @override
    def start(self) -> None:
        """Start the process, in a new session so that Ctrl-C reaches the training alone."""
        if self.repo is None:
            return
        command = subprocesses.python("-m", _PROGRAM, str(self.directory.root), str(self.repo))
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
                env=subprocesses.environment(OMP_NUM_THREADS="1"),
            )
        except OSError as error:
            self._give_up(f"its process cannot be started: {error}")

    @override
    def check(self) -> None:
        """Report the process if it has ended early."""
        if self._process and self._process.poll() is not None:
            self._collect(self._process)

    @override
    def close(self) -> dict[str, Any]:
        """Wait for the last lines to be written; the run's hash in Aim, as `aim_hash`."""
        if self._process:
            self._finish(self._process)
        run_hash = read_hash(self.directory)
        return {"aim_hash": run_hash} if run_hash else {}

    def _finish(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin
        process.stdin.close()
        try:
            process.wait(_QUIET_S)
        except subprocess.TimeoutExpired:
            self.display.stage("writing the rest to Aim", 1)
        try:
            process.wait(self.finish_s)
            self._collect(process)
        except subprocess.TimeoutExpired:
            self._give_up(f"it took more than {self.finish_s:g} s to end")
        finally:
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
        self.display.note(
            f"Aim does not show this run: {why}. Training is not affected; to add the run later: "
            f"sacglam aim-import {self.directory.root}"
        )


def sidecar_for(directory: RunDirectory, config: TrackingConfig, display: Display) -> AimSidecar:
    """The sidecar of the run in `directory`, which does nothing if `config` turns Aim off or it is not installed.

    Raises:
        TrackingError: `tracking.aim` is true and Aim is not installed.
    """
    if config.aim is True and not installed():
        raise TrackingError(f"tracking.aim is true, but Aim is not installed; {INSTALL}, or set it to auto")
    tracked = config.aim is not False and installed()
    return AimSidecar(directory, repo_of(directory, config) if tracked else None, display)


def repo_of(directory: RunDirectory, config: TrackingConfig) -> Path:
    """The folder of a run's Aim repository: by default the parent of the run's folder."""
    return Path(config.repo) if config.repo else directory.root.resolve().parent


def read_hash(directory: RunDirectory) -> str | None:
    """The hash under which Aim has the run, from its `aim.json`; None if Aim does not have it."""
    link = files.read_json(directory.root / _LINK, _LINK_FORM)
    return link["hash"] if link else None


def write_hash(directory: RunDirectory, run_hash: str, repo: Path) -> None:
    """Write `aim.json` whole or not at all."""
    with write_explained(directory.root / _LINK):
        files.write(directory.root / _LINK, json.dumps({"hash": run_hash, "repo": str(repo)}) + "\n")
