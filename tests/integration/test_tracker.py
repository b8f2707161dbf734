"""A tracker observes a run: it is started, sees every line and is closed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from typing_extensions import override

from sacglam.config import parse
from sacglam.config.sections import TrackingConfig
from sacglam.runs.directory import RunDirectory
from sacglam.runs.display import Display, Tracker
from sacglam.training import resume, train
from tests.fuzz.common import TINY, quick_runs


class Counting(Tracker):
    """Counts the lines that are there at each call."""

    def __init__(self, directory: RunDirectory, config: TrackingConfig, display: Display) -> None:
        self._directory = directory
        self._to = config.to
        self._lines: list[int] | None = None

    @override
    def start(self) -> None:
        assert self._lines is None
        self._lines = [len(self._directory.metrics())]

    @override
    def logged(self, line: Mapping[str, float]) -> bool:
        assert self._lines is not None
        self._lines.append(len(self._directory.metrics()))
        return False

    @override
    def close(self) -> None:
        assert self._directory.summary()
        (self._directory.root / "seen.json").write_text(json.dumps([self._to, self._lines]))


def test_a_tracker_sees_every_line_and_is_closed_after_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_runs(monkeypatch)
    run = tmp_path / "run"
    summary = train(parse(TINY), run, tracker=Counting)
    lines = len(RunDirectory(run).metrics())
    assert json.loads((run / "seen.json").read_text()) == [[], list(range(lines + 1))]
    assert json.loads((run / "summary.json").read_text()) == summary
    resume(run, tracker=Counting)
    assert json.loads((run / "seen.json").read_text()) == [[], [lines]]
