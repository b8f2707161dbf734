"""Runs of other settings are found out, and what is done is not done again."""

from __future__ import annotations

from pathlib import Path

import pytest

from sacglam import config as configuration
from sacglam.errors import RunDirectoryError
from sacglam.tools.experiments import plan
from sacglam.tools.experiments.state import (
    State,
    add_session,
    check_same,
    differences,
    needs_heldout,
    sessions,
    state,
)
from tests.unit.tools.experiments.made_up import finish


def run(tmp_path: Path, *overrides: str) -> plan.Run:
    experiment = plan.comparison([configuration.quickstart_path()])
    return plan.runs(experiment, 1, overrides, tmp_path)[0]


def test_new_begun_finished(tmp_path: Path) -> None:
    one = run(tmp_path)
    assert state(one) is State.NEW
    finish(one, [0.5])
    assert state(one) is State.FINISHED
    (one.folder / "summary.json").write_text('{"finished": false}')
    assert state(one) is State.BEGUN
    (one.folder / "summary.json").unlink()
    assert state(one) is State.BEGUN


def test_the_same_settings_pass_wherever_auto_came_to(tmp_path: Path) -> None:
    one = run(tmp_path)
    finish(one, [0.5])
    check_same([one])


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    finish(run(tmp_path, "algo.gamma=0.9", "steps=960"), [0.5])
    with pytest.raises(RunDirectoryError) as refused:
        check_same([run(tmp_path, "algo.gamma=0.5", "steps=640")])
    told = str(refused.value)
    assert "steps: 960 there, 640 now" in told
    assert "algo.gamma: 0.9 there, 0.5 now" in told
    assert "seed0" in told
    assert "algo.tau" not in told


def test_a_device_asked_for_is_compared() -> None:
    there, now = (configuration.load(None, [f"device={device}"]) for device in ("cpu", "cuda"))
    assert differences(there, now) == ["device: 'cpu' there, 'cuda' now"]


def test_a_models_folder_is_compared_by_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    there = configuration.load(None, [f"model.name={tmp_path}/model"])
    assert differences(there, configuration.load(None, ["model.name=model"])) == []


def test_heldout_goals_are_measured_once_and_where_there_are_any(tmp_path: Path) -> None:
    one = run(tmp_path / "a")
    finish(one, [0.5])
    assert needs_heldout(one)
    (one.folder / "heldout.json").write_text("{}")
    assert not needs_heldout(one)
    assert not needs_heldout(run(tmp_path / "b", "env.name=bitflip"))


def test_sessions_add_up(tmp_path: Path) -> None:
    one = run(tmp_path)
    add_session(one, {"jobs": 1})
    assert sessions(one) == []  # it never began
    one.folder.mkdir(parents=True)
    add_session(one, {"jobs": 1})
    add_session(one, {"jobs": 2})
    assert sessions(one) == [{"jobs": 1}, {"jobs": 2}]
