"""`metrics.jsonl` and `samples.jsonl`: one JSON object per line, each with its environment step."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

from pydantic import Field, TypeAdapter

from sacglam import files
from sacglam.errors import RunDirectoryError, write_explained

_LARGEST = 2048 * files.MIB


class Line(files.Form, extra="allow"):
    """A line of any log."""

    env_steps: Annotated[int, Field(ge=0, le=2**53)]


class MetricsLine(Line):
    """A line of `metrics.jsonl`: numbers only."""

    __pydantic_extra__: dict[str, float]


LINE, METRICS_LINE = TypeAdapter(Line), TypeAdapter(MetricsLine)


@dataclass(frozen=True)
class LineLog:
    """A log, flushed after every line. Lines that do not match `form` count as damaged."""

    file: Path
    form: TypeAdapter[Any] = METRICS_LINE

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line."""
        with write_explained(self.file), files.opened(self.file, "ab") as log:
            log.write(json.dumps(line).encode() + b"\n")

    def lines(self) -> list[dict[str, Any]]:
        """All readable lines; a crash may have truncated the last one, and a fault may have damaged any."""
        return [line for line in self._read() if line is not None]

    def rewind(self, env_steps: int, updates: int) -> int:
        """Drop the lines after these environment steps and updates, which a resumed run logs again.

        Also drops damaged lines and returns their number, not counting a truncated last line.
        """
        lines, end = self._read(), (env_steps, updates)
        rest = [line for line in lines if line and (line["env_steps"], line.get("updates", 0)) <= end]
        kept = "".join(json.dumps(line) + "\n" for line in rest)
        with write_explained(self.file):
            files.write(self.file, kept)
        return lines[:-1].count(None)

    def _read(self) -> list[dict[str, Any] | None]:
        """Every line, or None if it is damaged; an empty last line is also None."""
        with open_log(self.file) as log:
            return [parse_line(text, self.form) for text in log.read().split(b"\n")]


def open_log(file: Path) -> IO[bytes]:
    """Open a log for reading; empty if there is none.

    Raises:
        RunDirectoryError: the log cannot be read.
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
        return files.parse_json(text, form)
    except ValueError:
        return None
