"""Files that others may have planted: read if they are what they should be, and never written through a link."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from sacglam import files
from tests.fuzz.common import within

PLANTED: dict[str, Callable[[Path], None]] = {
    "named pipe": os.mkfifo,
    "device": lambda file: file.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", PLANTED)
def test_what_is_no_regular_file_is_not_read(kind: str, tmp_path: Path) -> None:
    PLANTED[kind](tmp_path / "planted")
    for attempt in (lambda: files.read(tmp_path / "planted", 10), lambda: files.check(tmp_path / "planted")):
        with within(5), pytest.raises(OSError, match=f"expected a regular file, found a {kind}"):
            attempt()


def test_what_is_too_large_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "sparse"
    with file.open("wb") as target:
        target.truncate(1 << 40)
    for attempt in (lambda: files.read(file, files.MIB), lambda: files.check(file, files.MIB)):
        with within(5), pytest.raises(OSError, match="expected at most 1,048,576 bytes, found 1,099,511,627,776"):
            attempt()


def test_a_report_may_be_larger_than_other_json(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"command": "' + "x" * (17 * files.MIB) + '"}')
    assert files.read_json(tmp_path / "report.json", files.OBJECT) is None
    assert files.read_json(tmp_path / "report.json", files.OBJECT, 32 * files.MIB).keys() == {"command"}


def test_a_small_file_takes_little_memory_however_large_it_may_be(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"mine")
    assert files.read(tmp_path / "small", 1 << 60) == b"mine"


def test_a_link_is_read_and_replaced_and_never_written_through(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"mine")
    link.symlink_to(target)
    (tmp_path / "link.writing").symlink_to(target)
    assert files.read(link, 10) == b"mine"
    with pytest.raises(OSError, match="it is a link"):
        files.opened(link, "ab")
    files.write(link, "yours")
    assert (target.read_bytes(), link.read_bytes(), link.is_symlink()) == (b"mine", b"yours", False)


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "file"
    files.write(file, "before")
    with suppress(RuntimeError), files.replacing(file) as target:
        target.write(b"half")
        raise RuntimeError
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert file.read_text() == "before"


def test_a_link_is_no_folder_to_write_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(OSError, match="it is a link"):
        files.make_folder(tmp_path / "link")
