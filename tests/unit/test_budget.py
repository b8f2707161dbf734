"""The size of the library. A feature pays for its lines with what it makes needless.

To raise a number, say in the commit what the lines buy and what was looked for to delete; whoever deletes lowers it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from sacglam.config import Config
from tests.unit.test_docs import settings

PACKAGE = Path(__file__).parents[2] / "sacglam"
LINES = {"": 20_748, "core": 14_289, "tools": 3_707, "cli": 1_123, "worlds": 1_629}
"""At most so many in all, and in the parts; the core is all but the others."""
LONG_FILES: dict[str, int] = {}
"""Files that may have more than 300 lines, and how many."""
LONG_FUNCTIONS = {"train": 66}  # the help of its options
SETTINGS = 80


def lines() -> dict[str, int]:
    """Lines by file, relative to the package."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {file.relative_to(PACKAGE).as_posix(): len(file.read_text().splitlines()) for file in files}


@pytest.mark.parametrize("part", LINES)
def test_lines(part: str) -> None:
    others = [name for name in LINES if name not in ("", "core")]
    found = {name: count for name, count in lines().items() if not part or part == _part(name, others)}
    assert found
    assert sum(found.values()) <= LINES[part], "see the top of this file"


def _part(name: str, others: list[str]) -> str:
    top = name.partition("/")[0]
    return top if top in others else "core"


def test_files_have_at_most_300_lines() -> None:
    assert [name for name, count in lines().items() if count > LONG_FILES.get(name, 300)] == []


def functions() -> Iterator[tuple[str, int]]:
    """Every function and method with its lines, docstring included."""
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, (node.end_lineno or 0) - node.lineno + 1


def test_functions_have_at_most_60_lines() -> None:
    assert [name for name, count in functions() if count > LONG_FUNCTIONS.get(name, 60)] == []


def test_settings() -> None:
    sections = {name.rpartition(".")[0] for name in settings(Config)}
    assert len({name for name in settings(Config) if name not in sections}) <= SETTINGS


def test_only_algorithms_know_their_settings() -> None:
    """Elsewhere it is asked what an algorithm needs, and not which it is; one place looks its name up."""
    allowed = ("algos/", "config/algorithm.py")
    asked = ("SacConfig", "PpoConfig", "algo.type ==", 'algo.type == "')
    files = [file for file in PACKAGE.rglob("*.py") if not file.relative_to(PACKAGE).as_posix().startswith(allowed)]
    assert [(file.name, each) for file in files for each in asked if each in file.read_text()] == []
