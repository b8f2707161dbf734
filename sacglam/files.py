"""Safe access to files that somebody else may have planted: named pipes, endless files, links, any content.

Only regular files within a size limit are read, and JSON only in a declared form; nothing is written through a link.
Anything else is refused, and the file to be written stays as it was.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic_core import from_json

MIB = 1 << 20
OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
"""The form of any JSON object."""
_LARGEST_JSON = 16 * MIB
_KINDS = {"d": "folder", "p": "named pipe", "s": "socket", "c": "device", "b": "device"}


class Form(BaseModel):
    """The form of a JSON object from a file or a request: values are not converted, and numbers are finite."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


def opened(file: Path, mode: Literal["rb", "r+b", "ab", "xb"] = "rb", most: int | None = None) -> IO[bytes]:
    """Open a regular file of at most `most` bytes without blocking. Links are followed only for reading."""

    def opener(path: str, flags: int) -> int:
        if mode != "rb":
            flags |= os.O_NOFOLLOW
        descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
        try:
            check(file, most, descriptor)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    if mode != "rb":
        _check_no_link(file)
    return open(file, mode, opener=opener)


def read(file: Path, most: int) -> bytes:
    """The contents of a regular file of at most `most` bytes."""
    with opened(file, most=most) as source:
        # Not `most` bytes, since Python allocates as many as it is asked to read.
        return source.read(min(most, os.fstat(source.fileno()).st_size))


def parse_json(content: bytes, form: TypeAdapter[Any]) -> Any:
    """Parse JSON and check its form, without converting values.

    Raises:
        ValueError: it is not JSON, or not in this form.
    """
    value = from_json(content)
    form.validate_python(value)
    return value


def read_json(file: Path, form: TypeAdapter[Any], most: int = _LARGEST_JSON) -> Any:
    """The JSON in a file of at most `most` bytes; None if there is no such file, or it is damaged."""
    try:
        return parse_json(read(file, most), form)
    except (OSError, ValueError):
        return None


def check(file: Path, most: int | None = None, descriptor: int | None = None) -> None:
    """Refuse (`OSError`) anything but a regular file of at most `most` bytes, given its descriptor if it is open."""
    found = os.stat(file if descriptor is None else descriptor)
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.filemode(found.st_mode)[0], "special file")
        raise OSError(errno.EINVAL, f"expected a regular file, found a {kind}", str(file))
    if most is not None and found.st_size > most:
        raise OSError(errno.EFBIG, f"expected at most {most:,} bytes, found {found.st_size:,}", str(file))


@contextmanager
def replacing(file: Path) -> Iterator[IO[bytes]]:
    """A new file to write. At the end of the block it is synced and replaces `file`, or a link there."""
    writing = file.with_name(f"{file.name}.writing")
    writing.unlink(missing_ok=True)  # left by a process that was killed, or planted
    try:
        with opened(writing, "xb") as target:
            yield target
            target.flush()
            os.fsync(target.fileno())
        writing.replace(file)
    except BaseException:
        writing.unlink(missing_ok=True)
        raise


def write(file: Path, content: str | bytes) -> None:
    """Write `file` whole or not at all; a link there is replaced."""
    with replacing(file) as target:
        target.write(content.encode() if isinstance(content, str) else content)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, unless it exists."""
    _check_no_link(folder)
    folder.mkdir(parents=True, exist_ok=True)


def _check_no_link(path: Path) -> None:
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link, and nothing is written through one; remove it", str(path))
