"""`metrics.jsonl` and `samples.jsonl`: one JSON object per line, each with the environment step it belongs to."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from sacglam import files
from sacglam.errors import RunDirectoryError, write_explained

_LARGEST = 2048 * files.MIB


class Line(BaseModel):
    """A line of any log."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False, extra="allow")

    env_steps: Annotated[int, Field(ge=0, le=2**53)]


class MetricsLine(Line):
    """A line of `metrics.jsonl`: numbers only."""

    __pydantic_extra__: dict[str, float]


LINE, METRICS_LINE = TypeAdapter(Line), TypeAdapter(MetricsLine)


class LineLog:
    """A log that is flushed after every line."""

    def __init__(self, file: Path, form: TypeAdapter[Any] = METRICS_LINE) -> None:
        """Appends to `file` if it exists. Lines of another form than `form` are damaged."""
        self._file = file
        self._form = form

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line."""
        with write_explained(self._file), files.opened(self._file, "ab") as file:
            file.write(json.dumps(line).encode() + b"\n")

    def lines(self) -> list[dict[str, Any]]:
        """All lines that can be read: a crash may have cut the last one short, and a fault damaged any."""
        return self._read()[0]

    def rewind(self, env_steps: int) -> int:
        """Drop the lines after `env_steps`: a resumed run logs what came after its last checkpoint again.

        Damaged lines are dropped too; how many, without a last one cut short.
        """
        lines, damaged = self._read()
        kept = "".join(json.dumps(line) + "\n" for line in lines if line["env_steps"] <= env_steps)
        with write_explained(self._file):
            files.write(self._file, kept)
        return damaged

    def _read(self) -> tuple[list[dict[str, Any]], int]:
        """The readable lines, and how many of the others were whole lines."""
        with open_log(self._file) as log:
            lines = [parse_line(text, self._form) for text in log.read().split(b"\n")]
        return [line for line in lines if line is not None], lines[:-1].count(None)


def open_log(file: Path) -> IO[bytes]:
    """A log to read; empty if there is none.

    Raises:
        RunDirectoryError: it cannot be read.
    """
    try:
        return files.opened(file, most=_LARGEST)
    except FileNotFoundError:
        return io.BytesIO()
    except OSError as error:
        raise RunDirectoryError(
            f"cannot read {file}: {error.strerror}. Restore it from a copy, or remove it"
        ) from error


def parse_line(text: bytes, form: TypeAdapter[Any] = METRICS_LINE) -> dict[str, Any] | None:
    """One line of a log; None if it is damaged."""
    try:
        line: dict[str, Any] = files.parse_json(text, form)
    except ValueError:
        return None
    return line
