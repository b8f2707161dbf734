"""The folder of one run and the files in it."""

from __future__ import annotations

import fcntl
import hashlib
import io
import itertools
import json
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

from sacglam import config as configuration
from sacglam import files
from sacglam.config import Config
from sacglam.errors import ConfigError, RunDirectoryError
from sacglam.runs import summary, trust

_LOCK = ".lock"
_LARGEST_OBJECT, _LARGEST_LOG = 16 * files.MIB, 2048 * files.MIB
_MOST_STEPS = 2**53


@contextmanager
def locked_folder(root: Path, busy: str) -> Iterator[int]:
    """Hold the lock of a folder, which is made if need be; yields its file descriptor.

    The lock ends with the last process that has the descriptor.

    Raises:
        RunDirectoryError: another process holds it (with the message `busy`), or the folder cannot be made.
    """
    file = root / _LOCK
    with explained(file):
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
            RunDirectoryError: it holds a run already, or anything else.
        """
        run = cls(root)
        run._check_vacant()
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
        self._check_vacant()
        with explained(self.config_file):
            try:
                files.opened(self.config_file, "xb").close()  # exclusive where a file system has no locks
            except FileExistsError:
                if self.claimed:
                    raise self._occupied() from None
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

    def _check_vacant(self) -> None:
        if self.claimed:
            raise self._occupied()
        killed = {_LOCK, self.config_file.name, f"{self.config_file.name}.writing"}  # what a killed claim may leave
        hint = ". To resume the run that was here, restore its config.yaml" if self.checkpoints.exists() else ""
        check_empty(self.root, killed, hint)

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
            config = configuration.parse_complete(self._config_text().decode())
        except (ConfigError, OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.config_file} does not fit this version of sacglam: {error}") from error
        if not self._trusted:
            trust.check(config, self.config_file)
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
        """The lines of `metrics.jsonl`, without a last line cut short by a crash, and without what is no number."""
        return [numbers(line) for line in LineLog(self.metrics_file).lines() if "seconds" in line]

    def summary(self) -> dict[str, Any] | None:
        """`summary.json`, or None before it is first written, or if it is damaged: it can be made again."""
        found = read_object(self.summary_file)
        return found if found is not None and summary.whole(found) else None

    def aim(self) -> dict[str, str] | None:
        """`aim.json`: the hash under which Aim knows this run, and the repository; None if Aim does not know it."""
        found = read_object(self.aim_file)
        return found if found and isinstance(found.get("hash"), str) and found["hash"].isalnum() else None

    def write_aim(self, run_hash: str, repo: Path) -> None:
        """Write `aim.json` whole or not at all."""
        _write(self.aim_file, json.dumps({"hash": run_hash, "repo": str(repo)}) + "\n")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json` whole or not at all."""
        _write(self.summary_file, json.dumps(summary, indent=2) + "\n")


class LineLog:
    """One JSON object per line, flushed at once, each with the `env_steps` at which it was written."""

    def __init__(self, file: Path) -> None:
        """Appends to `file` if it exists."""
        self._file = file

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line."""
        with explained(self._file), files.opened(self._file, "ab") as file:
            file.write(json.dumps(line).encode() + b"\n")

    def lines(self) -> list[dict[str, Any]]:
        """All lines that can be read: a crash may have cut the last one short, and a fault damaged any."""
        return self._read()[0]

    def rewind(self, env_steps: int) -> int:
        """Drop the lines after `env_steps`: a resumed run logs what came after its last checkpoint again.

        Damaged lines are dropped too; how many, without a last one cut short.
        """
        lines, damaged = self._read()
        kept = [line for line in lines if line["env_steps"] <= env_steps]
        _write(self._file, "".join(json.dumps(line) + "\n" for line in kept))
        return damaged

    def _read(self) -> tuple[list[dict[str, Any]], int]:
        """The readable lines, and how many of the others were whole lines."""
        with open_log(self._file) as opened:
            *whole, rest = opened.read().split(b"\n")
        found = [line for line in map(parse_line, [*whole, rest]) if line is not None]
        return found, sum(parse_line(line) is None for line in whole)


def open_log(file: Path) -> IO[bytes]:
    """A log to read; empty if there is none.

    Raises:
        RunDirectoryError: it cannot be read.
    """
    try:
        return files.opened(file, most=_LARGEST_LOG)
    except FileNotFoundError:
        return io.BytesIO()
    except OSError as error:
        raise RunDirectoryError(
            f"cannot read {file}: {error.strerror}. Restore it from a copy, or remove it"
        ) from error


def parse_line(text: bytes) -> dict[str, Any] | None:
    """One line of a log; None if it is damaged."""
    line = parse_object(text)
    if line is None or type(line.get("env_steps")) is not int:
        return None
    return line if 0 <= line["env_steps"] <= _MOST_STEPS and is_number(line.get("seconds", 0)) else None


def numbers(line: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a line of metrics that are numbers."""
    return {name: value for name, value in line.items() if is_number(value)}


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number of a size that floats have."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def read_object(file: Path) -> dict[str, Any] | None:
    """A JSON object in a file; None if there is no such file, or it is damaged."""
    try:
        return parse_object(files.read(file, _LARGEST_OBJECT))
    except OSError:
        return None


def parse_object(text: bytes) -> dict[str, Any] | None:
    """A JSON object; None if the text is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return None
    return found if isinstance(found, dict) else None


def _write(file: Path, content: str) -> None:
    with explained(file):
        files.write(file, content)


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files, by name, into a folder that is made if need be.

    Raises:
        RunDirectoryError: the folder cannot be written.
    """
    with explained(folder):
        files.make_folder(folder)
        for name, content in contents.items():
            files.write(folder / name, content)


@contextmanager
def explained(file: Path) -> Iterator[None]:
    """Turn a failure to write `file`, e.g. on a full disk, into an error that says so."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunDirectoryError(
            f"cannot write {file}: {error}. Fix that and try again; --resume continues a run"
        ) from error


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
