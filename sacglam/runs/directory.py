"""The folder of one run and the files in it."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from sacglam import config as configuration
from sacglam.config import Config
from sacglam.envs import check_trusted
from sacglam.errors import ConfigError, RunDirectoryError
from sacglam.runs import summary


@contextmanager
def locked_folder(root: Path, busy: str) -> Iterator[int]:
    """Hold the lock of a folder, which is made if need be; yields its file descriptor.

    The lock ends with the last process that has the descriptor.

    Raises:
        RunDirectoryError: another process holds it (with the message `busy`), or the folder cannot be made.
    """
    file = root / ".lock"
    with explained(file):
        root.mkdir(parents=True, exist_ok=True)
        held = file.open("a")
    with held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunDirectoryError(busy) from None
        except OSError:  # a file system without locks: there is nothing to hold
            pass
        yield held.fileno()


class RunDirectory:
    """`config.yaml`, the `.jsonl` logs, `summary.json`, `checkpoints/`, `adapter/` and `curves.png` under one root."""

    def __init__(self, root: Path, trusted: bool = True) -> None:
        """Touches nothing; see `create` and `open`."""
        self.root = root
        self._trusted = trusted
        self.config_file = root / "config.yaml"
        self.metrics_file = root / "metrics.jsonl"
        self.samples_file = root / "samples.jsonl"
        self.summary_file = root / "summary.json"
        self.checkpoints = root / "checkpoints"
        self.adapter = root / "adapter"
        self.curves = root / "curves.png"
        self.aim_file = root / "aim.json"

    @classmethod
    def vacant(cls, root: Path) -> RunDirectory:
        """A folder for a new run; touches nothing.

        Raises:
            RunDirectoryError: it holds a run already.
        """
        run = cls(root)
        if run.claimed:
            raise run._occupied()
        return run

    @property
    def claimed(self) -> bool:
        """Whether it holds a run. A process that is killed while it claims the folder may leave an empty file."""
        return self.config_file.is_file() and self.config_file.stat().st_size > 0

    def claim(self, config: Config) -> None:
        """Write the run's resolved configuration into the folder, which this process has locked.

        Raises:
            RunDirectoryError: the folder holds a run already, or cannot be written.
        """
        with explained(self.config_file):
            try:
                self.config_file.open("x").close()  # exclusive where a file system has no locks
            except FileExistsError:
                if self.claimed:
                    raise self._occupied() from None
        self.settle(config)

    def settle(self, config: Config) -> None:
        """Write the run's configuration, again where something was decided since `claim`."""
        _replace(self.config_file, config.to_yaml())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder, which is made if need be, against other processes. The lock ends with this process.

        Raises:
            RunDirectoryError: another process trains here, or the folder cannot be made.
        """
        busy = f"another process is training the run in {self.root}; wait for it, or stop it, before you resume"
        with locked_folder(self.root, busy):
            yield

    @classmethod
    def open(cls, root: Path, trusted: bool = False) -> RunDirectory:
        """An existing run, which may be someone else's: `config` then refuses to name their code, unless `trusted`.

        Raises:
            RunDirectoryError: there is none.
        """
        run = cls(root, trusted)
        if not run.claimed:
            raise RunDirectoryError(f"expected a run directory with a config.yaml at {root}, found none")
        return run

    def _occupied(self) -> RunDirectoryError:
        return RunDirectoryError(
            f"{self.root} holds a run already. Resume it with --resume {self.root}, or choose another --out"
        )

    def config(self) -> Config:
        """The run's resolved configuration.

        Raises:
            ConfigError: the file does not fit this version of sacglam, or lacks a value: it was cut off.
        """
        try:
            config = configuration.parse_complete(self.config_file.read_text())
        except (ConfigError, OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.config_file} does not fit this version of sacglam: {error}") from error
        if not self._trusted:
            check_trusted(config.env.name, config.env.options)
        if (self.summary() or {}).get("config_sha256", self.config_hash()) != self.config_hash():
            warnings.warn(
                f"{self.config_file} was changed after the run began: what follows is another experiment", stacklevel=2
            )
        return config

    def config_hash(self) -> str:
        """The SHA-256 of `config.yaml`, which the summary keeps."""
        return hashlib.sha256(self.config_file.read_bytes()).hexdigest()

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`, without a last line cut short by a crash, and without what is no number."""
        lines = [line for line in LineLog(self.metrics_file).lines() if "seconds" in line]
        return [{name: value for name, value in line.items() if is_number(value)} for line in lines]

    def summary(self) -> dict[str, Any] | None:
        """`summary.json`, or None before it is first written, or if it is damaged: it can be made again."""
        found = read_object(self.summary_file)
        return found if found is not None and summary.whole(found) else None

    def aim(self) -> dict[str, str] | None:
        """`aim.json`: the hash under which Aim knows this run, and the repository; None if Aim does not know it."""
        found = read_object(self.aim_file)
        return found if found and isinstance(found.get("hash"), str) else None

    def write_aim(self, run_hash: str, repo: Path) -> None:
        """Write `aim.json` whole or not at all."""
        _replace(self.aim_file, json.dumps({"hash": run_hash, "repo": str(repo)}) + "\n")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json` whole or not at all."""
        _replace(self.summary_file, json.dumps(summary, indent=2) + "\n")


class LineLog:
    """One JSON object per line, flushed at once, each with the `env_steps` at which it was written."""

    def __init__(self, file: Path) -> None:
        """Appends to `file` if it exists."""
        self._file = file

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line."""
        with explained(self._file), self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def lines(self) -> list[dict[str, Any]]:
        """All lines that can be read: a crash may have cut the last one short, and a fault damaged any."""
        return self._read()[0]

    def rewind(self, env_steps: int) -> int:
        """Drop the lines after `env_steps`: a resumed run logs what came after its last checkpoint again.

        Damaged lines are dropped too; how many, without a last one cut short.
        """
        lines, damaged = self._read()
        kept = [line for line in lines if line["env_steps"] <= env_steps]
        _replace(self._file, "".join(json.dumps(line) + "\n" for line in kept))
        return damaged

    def _read(self) -> tuple[list[dict[str, Any]], int]:
        """The readable lines, and how many of the others were whole lines."""
        content = self._file.read_bytes() if self._file.is_file() else b""
        *whole, rest = content.split(b"\n")
        found = [line for line in map(_line, [*whole, rest]) if line is not None]
        return found, sum(_line(line) is None for line in whole)


def _line(text: bytes) -> dict[str, Any] | None:
    """One line of a log; None if it is damaged."""
    line = parse_object(text)
    if line is None or type(line.get("env_steps")) is not int:
        return None
    return line if is_number(line["env_steps"]) and is_number(line.get("seconds", 0)) else None


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number of a size that floats have."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def read_object(file: Path) -> dict[str, Any] | None:
    """A JSON object in a file; None if there is no such file, or it is damaged."""
    try:
        return parse_object(file.read_bytes())
    except OSError:
        return None


def parse_object(text: bytes) -> dict[str, Any] | None:
    """A JSON object; None if the text is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return None
    return found if isinstance(found, dict) else None


def _replace(file: Path, content: str) -> None:
    """Write `file` whole or not at all."""
    writing = file.with_suffix(".writing")
    with explained(file):
        with writing.open("w") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        writing.replace(file)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files, by name, into a folder that is made if need be.

    Raises:
        RunDirectoryError: the folder cannot be written.
    """
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)


@contextmanager
def explained(file: Path) -> Iterator[None]:
    """Turn a failure to write `file`, e.g. on a full disk, into an error that says so."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunDirectoryError(
            f"cannot write {file}: {error}. Fix that and try again; --resume continues a run"
        ) from error


def fresh(seed: int, parent: Path = Path("runs")) -> Path:
    """A name for a new run's folder under `parent`, from the time and the seed."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-seed{seed}"
    names = (stem if i == 0 else f"{stem}-{i}" for i in itertools.count())
    return next(parent / name for name in names if not (parent / name).exists())
