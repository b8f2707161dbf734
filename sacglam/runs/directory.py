"""The folder of one run and the files in it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from sacglam import config as configuration
from sacglam.config import Config
from sacglam.errors import ConfigError, RunDirectoryError


class RunDirectory:
    """`config.yaml`, `metrics.jsonl`, `summary.json`, `checkpoints/`, `adapter/` and `curves.png` under one root."""

    def __init__(self, root: Path) -> None:
        """Touches nothing; see `create` and `open`."""
        self.root = root
        self.config_file = root / "config.yaml"
        self.metrics_file = root / "metrics.jsonl"
        self.summary_file = root / "summary.json"
        self.checkpoints = root / "checkpoints"
        self.adapter = root / "adapter"
        self.curves = root / "curves.png"

    @classmethod
    def create(cls, root: Path, config: Config) -> RunDirectory:
        """Make the folder of a new run and write its resolved configuration.

        Raises:
            RunDirectoryError: the folder holds a run already, or cannot be made.
        """
        run = cls(root)
        if run.config_file.exists():
            raise RunDirectoryError(
                f"{root} holds a run already. Go on with it: sacglam train --resume {root}; or choose another --out"
            )
        try:
            root.mkdir(parents=True, exist_ok=True)
            run.config_file.write_text(config.to_yaml())
        except OSError as error:
            raise RunDirectoryError(f"cannot make a run directory at {root}: {error.strerror}") from error
        return run

    @classmethod
    def open(cls, root: Path) -> RunDirectory:
        """An existing run.

        Raises:
            RunDirectoryError: there is none.
        """
        run = cls(root)
        if not run.config_file.is_file():
            raise RunDirectoryError(f"expected a run directory with a config.yaml at {root}, found none")
        return run

    def config(self) -> Config:
        """The run's resolved configuration.

        Raises:
            ConfigError: the file does not fit this version of sacglam.
        """
        try:
            return configuration.parse(yaml.safe_load(self.config_file.read_text()))
        except ConfigError as error:
            raise ConfigError(f"{self.config_file} does not fit this version of sacglam: {error}") from error

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`; a last line cut short by a crash is left out."""
        if not self.metrics_file.exists():
            return []
        found = []
        for line in self.metrics_file.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return found

    def summary(self) -> dict[str, Any] | None:
        """`summary.json`, or None before it is first written."""
        if not self.summary_file.exists():
            return None
        found: dict[str, Any] = json.loads(self.summary_file.read_text())
        return found

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json` whole or not at all."""
        _replace(self.summary_file, json.dumps(summary, indent=2) + "\n")


class MetricsLog:
    """`metrics.jsonl`: one JSON object a line, flushed at once."""

    def __init__(self, run: RunDirectory) -> None:
        """Appends to what is there."""
        self._run = run

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line."""
        with _explained(self._run.metrics_file), self._run.metrics_file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def rewind(self, env_steps: int) -> None:
        """Drop the lines after `env_steps`: what an interrupted run logged past its last checkpoint comes again."""
        kept = [line for line in self._run.metrics() if line["env_steps"] <= env_steps]
        _replace(self._run.metrics_file, "".join(json.dumps(line) + "\n" for line in kept))


def _replace(file: Path, content: str) -> None:
    """Write `file` whole or not at all."""
    writing = file.with_suffix(".writing")
    with _explained(file):
        writing.write_text(content)
        writing.replace(file)


@contextmanager
def _explained(file: Path) -> Iterator[None]:
    """Turn a failure to write `file`, e.g. on a full disk, into an error that says how to go on."""
    try:
        yield
    except OSError as error:
        raise RunDirectoryError(
            f"cannot write {file}: {error.strerror}. Mend that, then go on with --resume {file.parent}"
        ) from error


def fresh(seed: int, parent: Path = Path("runs")) -> Path:
    """A name for a new run's folder under `parent`, from the time and the seed."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-seed{seed}"
    names = (stem if i == 0 else f"{stem}-{i}" for i in itertools.count())
    return next(parent / name for name in names if not (parent / name).exists())
