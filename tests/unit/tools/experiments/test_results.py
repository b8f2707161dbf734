"""What a run's folder says: how far it is, and whether it is the run that is asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sacglam import config as configuration
from sacglam.errors import RunDirectoryError, UntrustedError
from sacglam.resolve import derived
from sacglam.tools.experiments import plan
from sacglam.tools.experiments.results import Result, check_same, differences, read, steps_of
from tests.unit.tools.experiments.conftest import Finish


def run(tmp_path: Path, *overrides: str) -> plan.Run:
    experiment = plan.comparison([configuration.QUICKSTART])
    return plan.runs(experiment, range(1), overrides, tmp_path)[0]


def test_new_begun_finished(tmp_path: Path, finish: Finish) -> None:
    one = run(tmp_path)
    assert not one.directory.claimed
    assert steps_of(one) == 0
    finish(one, [0.5, 0.75])
    assert one.finished
    assert steps_of(one) == 200
    for unfinished in ('{"finished": false}', "cut sho"):
        one.directory.summary_file.write_text(unfinished)
        assert (one.directory.claimed, one.finished) == (True, False)


def test_the_same_settings_pass_whatever_auto_chose(tmp_path: Path, finish: Finish) -> None:
    one = run(tmp_path)
    finish(one, [0.5])
    check_same([one])


def test_other_settings_are_refused_by_name(tmp_path: Path, finish: Finish) -> None:
    finish(run(tmp_path, "algo.gamma=0.9", "steps=960"), [0.5])
    with pytest.raises(RunDirectoryError) as refused:
        check_same([run(tmp_path, "algo.gamma=0.5", "steps=640")])
    said = str(refused.value)
    assert "steps: 960 there, 640 now" in said
    assert "algo.gamma: 0.9 there, 0.5 now" in said
    assert "seed0" in said
    assert "algo.tau" not in said


def test_a_device_asked_for_is_compared() -> None:
    there, now = (configuration.load(None, [f"device={device}"]) for device in ("cpu", "cuda"))
    assert differences(there, now) == ["device: 'cpu' there, 'cuda' now"]


def test_what_a_run_settled_agrees_with_settings_left_open() -> None:
    settled = ["device=cpu", "env.copies=8", "policy.temperature=2.5", "algo.reward_scale=0.1"]
    there, now = (configuration.load(None, [*each, "env.reward=environment"]) for each in (settled, settled[:1]))
    assert now.env.copies == 0
    assert differences(there, now) == ["policy.temperature: 2.5 there, 1.0 now"]


def test_a_models_folder_is_compared_by_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    there = configuration.load(None, [f"model.name={tmp_path}/model"])
    assert differences(there, configuration.load(None, ["model.name=model"])) == []


def test_a_run_whose_folder_names_an_algorithm_is_refused_before_that_is_imported(
    tmp_path: Path, finish: Finish
) -> None:
    planted = run(tmp_path)
    finish(planted, [0.5])
    file = planted.directory.config_file
    file.write_text(file.read_text().replace("type: sac", "type: antigravity:Config", 1))
    with pytest.raises(UntrustedError, match="antigravity:Config"):
        check_same([planted])
    with pytest.raises(UntrustedError, match="antigravity:Config"):
        read(planted)
    assert "antigravity" not in sys.modules


def test_all_that_a_run_derives_may_differ_from_a_file_that_leaves_it_open() -> None:
    open_ = ["env.copies=0", "policy.temperature=auto", "critic.score_weight=auto", "env.reward=environment"]
    asked = configuration.load(None, [*open_, "replay.hindsight.type=none"])
    settled = ["env.copies=4", "policy.temperature=2", "critic.score_weight=0.1", "algo.reward_scale=3"]
    found = configuration.load(None, [*open_, "replay.hindsight.type=none", *settled])
    assert len(derived(asked, found)) == 4
    assert differences(found, asked) == []


def test_a_type_of_goals_that_no_episode_had_has_a_share_of_0(tmp_path: Path) -> None:
    at = {"env_steps": 32, "seconds": 1.0}
    lines = [
        {**at, "goal_share/grasp": 1.0, "success/grasp": 0.5},
        at,
        {**at, "goal_share/grasp": 0.75, "goal_share/grow": 0.25},
    ]
    found = Result(run(tmp_path), configuration.load(), {}, lines)
    assert found.metric("goal_share/grow")["values"] == (0.0, 0.25)
    assert found.metric("success/grasp")["values"] == (0.5,)
