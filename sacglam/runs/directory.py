"""The folder of one run and the files in it."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from sacglam import config as configuration
from sacglam import files
from sacglam.config import Config
from sacglam.envs import foreign_code
from sacglam.errors import ConfigError, RunDirectoryError, UntrustedError, write_explained
from sacglam.runs.logs import LineLog
from sacglam.runs.summary import SUMMARY

_LOCK = ".lock"
_OWN_RAY = (None, "auto", "local")
"""Addresses of a Ray that this machine or its environment chose. Ray unpickles what any other cluster sends."""


@contextmanager
def locked_folder(root: Path, busy: str) -> Iterator[int]:
    """Hold the lock of a folder, which is made if need be; yields its file descriptor.

    The lock ends with the last process that has the descriptor.

    Raises:
        RunDirectoryError: another process holds it (with the message `busy`), or the folder cannot be made.
    """
    file = root / _LOCK
    with write_explained(file):
        root.mkdir(parents=True, exist_ok=True)
        held = files.opened(file, "ab")
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
        """Touches nothing; see `vacant` and `open`."""
        self.root = root
        self._trusted = trusted
        self.config_file = root / "config.yaml"
        self.metrics_file = root / "metrics.jsonl"
        self.samples_file = root / "samples.jsonl"
        self.summary_file = root / "summary.json"
        self.checkpoints = root / "checkpoints"
        self.adapter = root / "adapter"
        self.curves = root / "curves.png"

    @classmethod
    def vacant(cls, root: Path) -> RunDirectory:
        """A folder for a new run; touches nothing.

        Raises:
            RunDirectoryError: it holds a run already, or anything else.
        """
        run = cls(root)
        if run.claimed:
            raise RunDirectoryError(
                f"{root} holds a run already. Resume it with --resume {root}, or choose another --out"
            )
        killed = {_LOCK, run.config_file.name, f"{run.config_file.name}.writing"}  # what a killed claim may leave
        hint = ". To resume the run that was here, restore its config.yaml" if run.checkpoints.exists() else ""
        check_empty(root, killed, hint)
        return run

    @classmethod
    def open(cls, root: Path, trusted: bool = False) -> RunDirectory:
        """An existing run, which may be someone else's: unless `trusted`, `config` refuses one that names their code.

        Raises:
            RunDirectoryError: there is none.
        """
        run = cls(root, trusted)
        if not run.claimed:
            raise RunDirectoryError(f"expected a run directory with a config.yaml at {root}, found none")
        return run

    @property
    def claimed(self) -> bool:
        """Whether it holds a run. A process that is killed while it claims the folder may leave an empty file."""
        return self.config_file.is_file() and self.config_file.stat().st_size > 0

    def claim(self, config: Config) -> None:
        """Write the run's resolved configuration into the folder, which this process has locked.

        Raises:
            RunDirectoryError: the folder holds a run already, or anything else, or cannot be written.
        """
        self.vacant(self.root)
        with write_explained(self.config_file):
            try:
                files.opened(self.config_file, "xb").close()  # exclusive where a file system has no locks
            except FileExistsError:
                self.vacant(self.root)
        self.settle(config)

    def settle(self, config: Config) -> None:
        """Write the run's configuration, again where something was decided since `claim`."""
        _write(self.config_file, config.to_yaml())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder, which is made if need be, against other processes. The lock ends with this process.

        Raises:
            RunDirectoryError: another process trains here, or the folder cannot be made.
        """
        busy = f"another process is training the run in {self.root}; wait for it, or stop it, before you resume"
        with locked_folder(self.root, busy):
            yield

    def config(self) -> Config:
        """The run's resolved configuration.

        Raises:
            ConfigError: the file does not fit this version of sacglam, or lacks a value: it was cut off.
        """
        try:
            config = configuration.parse_complete(self._config_text().decode(), self._trusted)
        except UntrustedError as error:
            raise UntrustedError(f"{self.config_file}: {error}") from None
        except (ConfigError, OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.config_file} does not fit this version of sacglam: {error}") from error
        if not self._trusted and (code := untrusted_code(config)):
            raise UntrustedError(f"{self.config_file}: it names {' and '.join(map(repr, code))}, {configuration.TRUST}")
        if (self.summary() or {}).get("config_sha256", self.config_hash()) != self.config_hash():
            warnings.warn(
                f"{self.config_file} was changed after the run began: what follows is another experiment", stacklevel=2
            )
        return config

    def _config_text(self) -> bytes:
        return files.read(self.config_file, configuration.LARGEST)

    def config_hash(self) -> str:
        """The SHA-256 of `config.yaml`, which the summary keeps."""
        return hashlib.sha256(self._config_text()).hexdigest()

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl` that can be read."""
        return LineLog(self.metrics_file).lines()

    def summary(self) -> dict[str, Any] | None:
        """`summary.json`, or None before it is first written, or if it is damaged: it can be made again."""
        summary: dict[str, Any] | None = files.read_json(self.summary_file, SUMMARY)
        return summary

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json` whole or not at all."""
        _write(self.summary_file, json.dumps(summary, indent=2) + "\n")


def _write(file: Path, content: str) -> None:
    with write_explained(file):
        files.write(file, content)


def untrusted_code(config: Config) -> list[str]:
    """What a run with this configuration would import or connect to because its folder names it; empty if nothing.

    What the user names is trusted: a configuration file, an override, an argument. What a folder names is not, unless
    it comes with sacglam or was registered by the program that reads the folder.
    """
    own = [name for name in (config.algo.type, config.replay.hindsight.type) if ":" in name]
    code = [*foreign_code(config.env.name, config.env.options), *own]
    return code if config.runtime.address in _OWN_RAY else [*code, f"Ray at {config.runtime.address}"]


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files, by name, into a folder that is made if need be.

    Raises:
        RunDirectoryError: the folder cannot be written.
    """
    with write_explained(folder):
        files.make_folder(folder)
        for name, content in contents.items():
            files.write(folder / name, content)


def check_empty(folder: Path, ignored: Collection[str] = (), hint: str = "") -> None:
    """Refuse to begin something new in a folder that holds files other than those `ignored`.

    Raises:
        RunDirectoryError: it does, or is not a folder; the message ends with `hint`.
    """
    try:
        found = sorted(each.name for each in folder.iterdir() if each.name not in ignored)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunDirectoryError(f"expected {folder} to be a new or empty folder: {error.strerror}") from error
    if found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise RunDirectoryError(
            f"expected {folder} to be a new or empty folder, but it holds {', '.join(found[:3])}{more}; choose another "
            f"--out, or empty it{hint}"
        )


def fresh(seed: int, parent: Path = Path("runs")) -> Path:
    """A name for a new run's folder under `parent`, from the time and the seed."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-seed{seed}"
    names = (stem if i == 0 else f"{stem}-{i}" for i in itertools.count())
    return next(parent / name for name in names if not (parent / name).exists())
