from __future__ import annotations

from pathlib import Path

from sacglam.tools.aim.sync import Tail


def test_a_tail_gives_whole_lines_once(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    tail = Tail(file)
    assert list(tail) == []
    file.write_text('{"a": 1}\n{"a": 2')
    assert list(tail) == [{"a": 1}]
    with file.open("a") as opened:
        opened.write("}\n")
    assert list(tail) == [{"a": 2}]
    assert list(tail) == []
