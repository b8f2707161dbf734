"""The folder of one run and the files in it."""

import atexit
import fcntl
import hashlib
import itertools
import json
import time
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self

from sacglam import config as configuration
from sacglam import files
from sacglam.config import Config
from sacglam.config.section import TRUST
from sacglam.envs import foreign_code
from sacglam.errors import ConfigError, RunDirectoryError, UntrustedError, write_explained
from sacglam.runs.logs import LineLog
from sacglam.runs.summary import SUMMARY

_LOCK, _POLL_S = ".lock", 0.2
EVALUATED, EVALUATED_RETURN = "eval_success/overall", "eval_return"


@contextmanager
def locked_folder(root: Path, busy: str, name: str = _LOCK, patience_s: float = 0.0) -> Iterator[int]:
    """Lock a folder by the file `name` in it, creating it if needed; yields the file descriptor of the lock.

    The lock lasts until the last process that holds the descriptor ends.

    Raises:
        RunDirectoryError: another process holds the lock for `patience_s` (message `busy`), or the folder cannot be
            created.
    """
    file = root / name
    with write_explained(file):
        root.mkdir(parents=True, exist_ok=True)
        held = files.opened(file, "ab")
    deadline = time.monotonic() + patience_s
    with held:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until the last process that has it open ends
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise RunDirectoryError(busy) from None
                time.sleep(_POLL_S)
            except OSError:  # the file system has no locks
                break
        yield held.fileno()


Trusted = bool | Literal["environment"]
"""Whether a folder may name code; `environment`: only an environment's, for readers that create no environment."""


class RunDirectory:
    """`config.yaml`, the `.jsonl` logs, `summary.json`, `checkpoints/`, `adapter/` and `curves.png` under one root."""

    def __init__(self, root: Path, trusted: Trusted = True) -> None:
        """Touches nothing; see `vacant` and `open`."""
        self.root = root
        self._trusted = trusted
        self.config_file = root / "config.yaml"
        self.metrics_file = root / "metrics.jsonl"
        self.samples_file = root / "samples.jsonl"
        self.summary_file = root / "summary.json"
        self.checkpoints = root / "checkpoints"
        self.adapter, self.best = root / "adapter", root / "best"
        self.curves = root / "curves.png"

    @classmethod
    def vacant(cls, root: Path) -> Self:
        """A folder for a new run; touches nothing.

        Raises:
            RunDirectoryError: it already holds a run, or anything else.
        """
        run = cls(root)
        if run.claimed:
            raise RunDirectoryError(
                f"{root} already holds a run. Resume it with --resume {root}, or choose another --out"
            )
        left_by_a_kill = {_LOCK, f"{run.config_file.name}.writing"}
        hint = ". To resume the run that was here, restore its config.yaml" if run.checkpoints.exists() else ""
        check_empty(root, left_by_a_kill, hint)
        return run

    @classmethod
    def open(cls, root: Path, trusted: Trusted = False) -> Self:
        """An existing run, possibly someone else's: unless `trusted`, `config` refuses runs that name foreign code.

        Raises:
            RunDirectoryError: there is no run.
        """
        run = cls(root, trusted)
        if not run.claimed:
            raise RunDirectoryError(f"expected a run directory with a config.yaml at {root}, found none")
        return run

    @property
    def claimed(self) -> bool:
        """Whether it holds a run."""
        return self.config_file.is_file()

    def claim(self, config: Config) -> None:
        """Write the run's resolved configuration. This process must hold the lock.

        Raises:
            RunDirectoryError: the folder already holds a run or anything else, or cannot be written.
        """
        self.vacant(self.root)
        with write_explained(self.config_file):
            files.write(self.config_file, config.to_yaml())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json` atomically."""
        with write_explained(self.summary_file):
            files.write(self.summary_file, json.dumps(summary, indent=2) + "\n")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder, creating it if needed. The lock ends with this process at the latest.

        Raises:
            RunDirectoryError: another process is training here, or the folder cannot be created.
        """
        busy = f"another process is training the run in {self.root}; wait for it or stop it before you resume"
        with locked_folder(self.root, busy):
            yield

    def config(self) -> Config:
        """The run's resolved configuration.

        Raises:
            ConfigError: the file does not fit this installation of sacglam, or lacks values because it was cut off.
        """
        config = read_config(self.config_file, self._trusted)
        if (self.summary() or {}).get("config_sha256", self.config_hash()) != self.config_hash():
            warnings.warn(
                f"{self.config_file} was changed after the run began: from here on this is a different experiment",
                stacklevel=2,
            )
        return config

    def config_hash(self) -> str:
        """The SHA-256 of `config.yaml`, recorded in the summary."""
        return hashlib.sha256(files.read(self.config_file, configuration.LARGEST)).hexdigest()

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl` that can be read."""
        return LineLog(self.metrics_file).lines()

    def summary(self) -> dict[str, Any] | None:
        """`summary.json`; None if it does not exist yet or is damaged, since it can be rebuilt."""
        return files.read_json(self.summary_file, SUMMARY)

    def best_summary(self) -> dict[str, Any] | None:
        """The summary of the agent in `best/`, the best in the evaluations during training; None if there is none."""
        found = type(self)(self.best).summary()
        return found if found and found["success_after"] else None


def read_config(file: Path, trusted: Trusted) -> Config:
    """The resolved configuration in a folder, possibly someone else's.

    Raises:
        ConfigError: the file does not fit this installation of sacglam, or lacks values because it was cut off.
        UntrustedError: it names foreign code and is not `trusted`.
    """
    try:
        config = configuration.parse_complete(files.read(file, configuration.LARGEST).decode(), trusted is True)
    except UntrustedError as error:
        raise UntrustedError(f"{file}: {error}") from None
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} does not fit this installation of sacglam: {error}") from error
    if not trusted and (code := untrusted_code(config)):
        raise UntrustedError(f"{file}: it names {' and '.join(map(repr, code))}, {TRUST}")
    return config


def untrusted_code(config: Config) -> list[str]:
    """Code that a run would use only because its folder names it; empty if none.

    Anything the user names (in a configuration file, override or argument) is trusted. Anything a folder names is not,
    unless it ships with sacglam or was registered by the program that reads the folder.
    """
    return [*foreign_code(config.env.name, config.env.options), *config.own_code]


def check_empty(folder: Path, ignored: Collection[str] = (), hint: str = "") -> None:
    """Check that a folder is missing or empty, apart from `ignored` files.

    Raises:
        RunDirectoryError: it holds other files (the message then ends with `hint`), or it is not a folder.
    """
    try:
        present = sorted(each.name for each in folder.iterdir() if each.name not in ignored)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunDirectoryError(f"expected {folder} to be a new or empty folder: {error.strerror}") from error
    if present:
        more = f" and {len(present) - 3} more" if len(present) > 3 else ""
        raise RunDirectoryError(
            f"expected {folder} to be a new or empty folder, but it holds {', '.join(present[:3])}{more}; choose "
            f"another one, or empty it{hint}"
        )


def fresh(seed: int, parent: Path = Path("runs")) -> Path:
    """A new folder for a run under `parent`, named after time and seed; removed at exit if it is still empty.

    Raises:
        RunDirectoryError: it cannot be created.
    """
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-seed{seed}"
    with write_explained(parent):
        parent.mkdir(parents=True, exist_ok=True)
    for i in itertools.count():
        folder = parent / (f"{stem}-{i}" if i else stem)
        with write_explained(folder), suppress(FileExistsError):
            folder.mkdir()
            atexit.register(_discard, folder)
            break
    return folder


def _discard(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
