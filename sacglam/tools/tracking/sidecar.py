"""Feeds trackers while a run trains: a process for each reads the run's files, so its failures cannot harm the run.

The run only writes files. However it ends, the process sees the end of its input, copies the rest and exits.
"""

import json
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter
from typing_extensions import override

from sacglam import files, subprocesses
from sacglam.config.sections import TrackingConfig
from sacglam.errors import SacglamError, TrackingError, write_explained
from sacglam.runs.directory import RunDirectory
from sacglam.runs.display import Display, Tracker

TITLES = {"aim": "Aim", "wandb": "Weights & Biases", "trackio": "Trackio", "tensorboard": "TensorBoard"}
_PROGRAM = "sacglam.tools.tracking.sync"
_QUIET_S, _FINISH_S, _POLL_S = 1.0, 60.0, 0.05


Callback = Callable[[Mapping[str, float]], bool | None]
"""Called with each line of metrics; true ends the run with a checkpoint, as Ctrl-C does."""


_Id = Annotated[str, Field(pattern="^[-.0-9A-Z_a-z]+$")]


class _Ids(files.Form):
    """What a tracker knows a run by, and in its other repositories."""

    hash: _Id
    others: list[_Id] | None = None


_IDS = TypeAdapter(_Ids)


def installed(name: str) -> bool:
    """Whether a tracker can be imported here."""
    return find_spec(name) is not None


def install(name: str) -> str:
    """How to install a tracker."""
    return f"pip install 'sacglam[{name}]'"


@contextmanager
def explained(name: str, folder: Path) -> Iterator[None]:
    """Turn any error of a tracker's library into a `TrackingError`.

    The libraries have no common base class for errors: a lock, a full disk and a damaged file each raise another type.
    """
    try:
        yield
    except SacglamError:
        raise
    except Exception as error:
        message = (str(error).strip().splitlines() or ["no message"])[0][:200]  # databases append the SQL statement
        place = folder / ".aim" if name == "aim" else folder
        raise TrackingError(
            f"{TITLES[name]} cannot use {place}: {type(error).__name__}: {message.rstrip('.')}"
        ) from error


@dataclass(eq=False)
class Sidecars(Tracker):
    """For each of a run's trackers, a process that copies the run into it; and the user's callback, if any."""

    directory: RunDirectory
    names: Sequence[str]
    display: Display
    callback: Callback | None = None
    _processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict, init=False)

    @override
    def start(self) -> None:
        repo = repo_of(self.directory)
        for name in self.names:
            command = subprocesses.python("-m", _PROGRAM, name, str(self.directory.root), str(repo))
            try:
                self._processes[name] = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    env=subprocesses.environment(OMP_NUM_THREADS="1"),
                    start_new_session=True,  # so that Ctrl-C reaches only the training
                )
            except OSError as error:
                self._give_up(name, f"its process cannot be started: {error}")

    @override
    def logged(self, line: Mapping[str, float]) -> bool:
        self.check()
        return bool(self.callback and self.callback(line))

    def check(self) -> None:
        """Report the processes that have ended early."""
        for name, process in list(self._processes.items()):
            if process.poll() is None:
                continue
            assert process.stdout
            del self._processes[name]
            if process.returncode < 0:
                self._give_up(name, f"its process was killed by signal {-process.returncode}")
            elif process.returncode:
                said = process.stdout.read().strip()
                self._give_up(name, said or f"its process ended with {process.returncode}")

    @override
    def close(self) -> None:
        """Wait for the last lines to be written."""
        try:
            for process in self._processes.values():
                assert process.stdin
                process.stdin.close()
            self._wait(_QUIET_S)
            if self._processes:
                self.display.stage(f"writing the rest to {', '.join(TITLES[name] for name in self._processes)}", 1)
            self._wait(_FINISH_S)
            for name in self._processes:
                self._give_up(name, f"it took more than {_FINISH_S:g} s to end")
        finally:
            for process in self._processes.values():
                process.kill()
            self._processes.clear()

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._processes and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            self.check()

    def _give_up(self, name: str, why: str) -> None:
        self.display.note(
            f"{TITLES[name]} does not show this run: {why}. Training is not affected; to add the run later: "
            f"sacglam track {shlex.quote(str(self.directory.root))} --to {name}"
        )


def sidecar_for(
    directory: RunDirectory, config: TrackingConfig, display: Display, callback: Callback | None = None
) -> Sidecars:
    """The sidecars of the run in `directory`: one for each of `tracking.to`; with auto, Aim's if it is installed.

    Raises:
        TrackingError: a tracker is named but not installed.
    """
    named = [name for name in ("aim",) if installed(name)] if config.to == "auto" else config.to
    if missing := [name for name in named if not installed(name)]:
        raise TrackingError(
            f"tracking.to has {missing[0]}, but {TITLES[missing[0]]} is not installed; {install(missing[0])}, or leave "
            "it out"
        )
    return Sidecars(directory, named, display, callback)


def repo_of(directory: RunDirectory) -> Path:
    """The folder that holds the trackers' files: the parent of the run's folder."""
    return directory.root.resolve().parent


def ids(directory: RunDirectory, name: str) -> list[str]:
    """What a tracker knows the run by, the last used first, from its `NAME.json`: each repository has its own."""
    found = files.read_json(directory.root / f"{name}.json", _IDS)
    return [found["hash"], *(found.get("others") or ())] if found else []


def write_id(directory: RunDirectory, name: str, used: str) -> None:
    """Put an id first in `NAME.json`, which is written whole or not at all."""
    file, others = directory.root / f"{name}.json", [each for each in ids(directory, name) if each != used]
    with write_explained(file):
        files.write(file, json.dumps({"hash": used, "others": others}) + "\n")
