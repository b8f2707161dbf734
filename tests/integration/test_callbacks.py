"""A function of the user's sees each line of metrics, and may end the run."""

from __future__ import annotations

import os
import runpy
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

import sacglam
from sacglam import config as configuration
from sacglam import training
from sacglam.runs.directory import RunDirectory
from tests.fuzz.common import TINY, quick_runs


def test_a_callback_sees_each_line_and_stops_a_run_that_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_runs(monkeypatch)
    config, seen = configuration.parse(TINY), list[Mapping[str, float]]()

    def stop_at_24(line: Mapping[str, float]) -> bool:
        seen.append(line)
        return line["env_steps"] >= 24

    summary = sacglam.train(config, tmp_path / "run", stop_at_24)
    run = RunDirectory.open(tmp_path / "run")
    assert (summary["finished"], summary["env_steps"]) == (False, 24)
    assert seen == run.metrics()
    assert [line["env_steps"] for line in seen] == [8, 16, 16, 24]  # after 16 also an evaluation
    assert training.resume(tmp_path / "run")["finished"]
    whole = training.train(config, tmp_path / "whole")
    assert whole["success_after"] == run.summary()["success_after"]  # type: ignore[index]
    timed = ("seconds", "cpu_seconds")
    plain = [
        [{name: value for name, value in line.items() if name not in timed} for line in each.metrics()]
        for each in (run, RunDirectory.open(tmp_path / "whole"))
    ]
    assert plain[0] == plain[1]


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("optuna") is None, reason="needs optuna")
def test_the_search_with_optuna(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "STEPS", "640")
    monkeypatch.setitem(os.environ, "TRIALS", "2")
    example = Path(__file__).parents[2] / "docs" / "examples" / "search.py"
    runpy.run_path(str(example))
    assert "with {'rate': " in capsys.readouterr().out
    assert [bool(RunDirectory.open(run).summary()) for run in (tmp_path / "runs").iterdir()] == [True, True]
