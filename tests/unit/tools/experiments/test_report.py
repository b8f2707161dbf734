"""What reports say of finished runs whose numbers are known."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sacglam import cpu
from sacglam.runs.logs import LineLog
from sacglam.tools.experiments import plan
from sacglam.tools.experiments.figure import draw_report
from sacglam.tools.experiments.markdown import markdown
from sacglam.tools.experiments.report import report
from sacglam.tools.experiments.runner import _outcome
from tests.unit.tools.experiments.conftest import Finish
from tests.unit.tools.experiments.test_plan import files

OVERRIDES = ("steps=400", "evaluation.every_steps=100", "threads=1")


@pytest.fixture
def values(tmp_path: Path, finish: Finish) -> dict[str, Any]:
    """`fast` with three seeds; `slow` with one that reaches 0.8, one that does not, and one unfinished."""
    experiment = plan.comparison(files(tmp_path, "fast", "slow"))
    runs = {(run.variant.name, run.seed): run for run in plan.runs(experiment, range(3), OVERRIDES, tmp_path)}
    finish(runs["fast", 0], [0.5, 0.8, 0.9, 0.9], heldout=0.6)
    finish(runs["fast", 1], [0.9, 0.9, 0.9, 1.0], heldout=0.8)
    finish(runs["fast", 2], [0.5, 0.8, 0.9, 0.8], heldout=0.7)
    finish(runs["slow", 0], [0.2, 0.4, 0.6, 0.8], seconds=2.0)
    finish(runs["slow", 1], [0.2, 0.4, 0.6, 0.7], seconds=2.0)
    return report(experiment, list(runs.values()), 0.8, "sacglam compare fast.yaml slow.yaml")


def members(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {member["label"]: member for member in values["groups"][0]["members"]}


def test_success_area_and_threshold(values: dict[str, Any]) -> None:
    fast, slow = members(values)["fast"], members(values)["slow"]
    assert fast["after"]["overall"].mean == pytest.approx(0.9)
    assert fast["sampled_after"]["overall"].mean == pytest.approx(0.45)
    assert fast["before"]["overall"].mean == pytest.approx(0.1)
    assert fast["random"]["grasp"].mean == pytest.approx(0.3)
    assert fast["heldout_after"]["overall"].mean == pytest.approx(0.7)
    # 0.1 0.2 0.4 0.6 0.8 and 0.1 0.2 0.4 0.6 0.7: trapezoids of width 1/4
    assert slow["area"].mean == pytest.approx((0.4125 + 0.4) / 2)
    assert fast["to_threshold"]["steps"].values == (200, 100, 200)
    assert fast["to_threshold"]["seconds"].values == (200, 100, 200)
    assert slow["to_threshold"]["steps"].values == (400, None)
    assert slow["to_threshold"]["seconds"].values == (800, None)
    assert slow["to_threshold"]["cpu_seconds"].values == (2400, None)
    assert slow["to_threshold"]["steps"].reached == 1
    assert slow["unfinished_seeds"] == [2]


def test_ratio_is_by_seeds_that_both_have(values: dict[str, Any]) -> None:
    (found,) = values["groups"][0]["ratios"]
    assert (found["of"], found["to"], found["seeds"]) == ("fast", "slow", 2)
    assert (found["steps"].mean, found["steps"].n) == (pytest.approx(0.5), 1)
    assert found["seconds"].mean == pytest.approx(0.25)


def test_forward_passes_are_those_of_steps_and_updates(values: dict[str, Any]) -> None:
    # An update of the quickstart learns 64 steps in windows of 10, with one pass more each: 64 (2 + 1/10) = 134.4 F.
    # The runs have as many updates as steps.
    curve = members(values)["slow"]["curves"]["0"]["overall"]
    assert curve["forward_passes"] == pytest.approx([steps * (1 + 134.4) for steps in (0, 100, 200, 300, 400)])
    assert members(values)["slow"]["to_threshold"]["forward_passes"].values == (pytest.approx(54_160), None)


def test_the_last_point_of_a_curve_is_the_evaluation_after_training(values: dict[str, Any]) -> None:
    curve = members(values)["slow"]["curves"]["1"]["overall"]
    assert curve["steps"] == (0, 100, 200, 300, 400)
    assert curve["values"] == (0.1, 0.2, 0.4, 0.6, 0.7)
    assert curve["seconds"] == (0, 200, 400, 600, 800)


def test_a_goal_type_that_one_seed_lacks_has_a_curve_for_each(tmp_path: Path, finish: Finish) -> None:
    experiment = plan.comparison(files(tmp_path, "fast"))
    group = experiment.groups[0].model_copy(update={"metric": "goal_share/"})
    runs = plan.runs(experiment, range(2), OVERRIDES, tmp_path)
    for run in runs:
        finish(run, [0.5, 0.8, 0.9, 0.9])
    lines = LineLog(runs[1].directory.metrics_file)
    only_grasp = [{name: value for name, value in line.items() if name != "goal_share/grow"} for line in lines.lines()]
    lines.file.write_text("".join(json.dumps(line) + "\n" for line in only_grasp))
    found = report(experiment.model_copy(update={"groups": (group,)}), runs, 0.8, "sacglam compare x.yaml")
    by_type = {member["label"]: member["curves"] for member in found["groups"][0]["members"]}
    assert by_type.keys() == {"grasp", "grow"}
    assert set(by_type["grow"]["0"]["goal_share"]["values"]) == {0.25}
    assert set(by_type["grow"]["1"]["goal_share"]["values"]) == {0.0}


def test_the_values_are_json_and_name_what_ran(values: dict[str, Any]) -> None:
    assert json.loads(json.dumps(values, default=asdict))["runs"] == {"finished": 5, "planned": 6}
    assert values["setting"]["threads"] == [1]
    assert values["setting"]["other_settings"] == []
    assert values["setting"]["environments"] == ["playground_simple"]
    assert values["setting"]["cores"] == [cpu.cores()]
    # 3 runs of 400 s and 2 of 800 s
    assert values["setting"]["training_minutes"] == round(2800 / 60, 3)


def test_a_run_of_other_settings_is_reported(tmp_path: Path, finish: Finish) -> None:
    experiment = plan.comparison(files(tmp_path, "a"))
    finish(plan.runs(experiment, range(1), [*OVERRIDES, "algo.gamma=0.5"], tmp_path)[0], [0.5])
    values = report(experiment, plan.runs(experiment, range(1), [*OVERRIDES, "algo.gamma=0.9"], tmp_path), 0.8, "")
    assert values["setting"]["other_settings"] == ["a seed 0: algo.gamma: 0.5 there, 0.9 now"]
    assert "other settings: a seed 0: algo.gamma" in markdown(values, "x.png")


def test_what_runs_warned_of_is_reported(tmp_path: Path, finish: Finish) -> None:
    experiment = plan.comparison(files(tmp_path, "a"))
    runs = plan.runs(experiment, range(2), OVERRIDES, tmp_path)
    for run, warnings in zip(runs, ([], ["the policy hardly explores"]), strict=True):
        summary = finish(run, [0.5]) / "summary.json"
        summary.write_text(json.dumps(json.loads(summary.read_text()) | {"warnings": warnings}))
    values = report(experiment, runs, 0.8, "")
    assert values["warnings"] == ["a seed 1: the policy hardly explores"]
    assert "## Warnings\n\n- a seed 1: the policy hardly explores\n" in markdown(values, "x.png")
    assert "## Warnings" not in markdown(values | {"warnings": []}, "x.png")


def test_the_text_shows_the_numbers_and_their_gaps(values: dict[str, Any]) -> None:
    text = markdown(values, "figure2.png")
    assert "![Comparison](figure2.png)" in text
    assert "seeds of slow: 2" in text
    assert "| fast | 3 | 0.900 [0.652, 1.148] |" in text
    assert "median 200; 3 of 3 reached" in text
    assert "1 of 2 reached" in text
    assert "| fast / slow | 0.50, 1 of 2 seeds | 0.25, 1 of 2 seeds |" in text
    assert "`sacglam compare fast.yaml slow.yaml`" in text


def test_the_figure_shows_every_member_in_its_colour(values: dict[str, Any], tmp_path: Path) -> None:
    from matplotlib.image import imread

    draw_report(values, tmp_path / "figure2.png")
    picture = imread(tmp_path / "figure2.png")
    height, width, _ = picture.shape
    for half in (picture[: height // 3, : width // 2], picture[: height // 3, width // 2 :]):  # two panels in a row
        for colour in ("0072B2", "D55E00"):
            rgb = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
            assert (abs(half[..., :3] - rgb).max(axis=-1) < 0.01).sum() > 300


def test_a_metric_has_a_panel_and_a_table_of_its_own(tmp_path: Path, finish: Finish) -> None:
    variants = plan.comparison(files(tmp_path, "a")).groups[0].variants
    group = plan.Group(title="relabelled", variants=variants, metric="buffer_hindsight_share")
    experiment = plan.Experiment(title="Sampling", groups=(group,))
    runs = plan.runs(experiment, range(2), OVERRIDES, tmp_path)
    for run in runs:
        finish(run, [0.1, 0.2, 0.3, 0.4])
    values = report(experiment, runs, 0.8, "")
    assert "| a | 2 | 0.100 | 0.400 |" in markdown(values, "x.png")
    values["groups"][0]["members"][0]["curves"] = {"0": {"buffer_hindsight_share": {"values": []}}}
    assert "| a | 0 | - | - |" in markdown(values, "x.png"), "no run has logged it"
    draw_report(values, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_with_own_rewards_there_are_returns(tmp_path: Path, finish: Finish) -> None:
    overrides = (*OVERRIDES, "env.name=bitflip", "env.reward=environment")
    experiment = plan.comparison(files(tmp_path, "a"), overrides)
    runs = plan.runs(experiment, range(2), overrides, tmp_path)
    for run, last in zip(runs, (-12.0, -14.0), strict=True):
        folder = finish(run, [0.1, 0.2])
        summary = json.loads((folder / "summary.json").read_text())
        earned = {"return_random": -200.0, "return_before": -100.0, "return_after": last, "return_sampled": -20.5}
        (folder / "summary.json").write_text(json.dumps(summary | earned))
        lines = [{**line, "eval_return": last * 2} for line in LineLog(folder / "metrics.jsonl").lines()]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    values = report(experiment, runs, 0.8, "")
    assert [group["title"] for group in values["groups"]] == ["Success", "Greedy return"]
    assert values["groups"][0]["members"][0]["returns"]["after"].mean == -13.0
    text = markdown(values, "x.png")
    assert "| a | -200.00 [-200.00, -200.00] | -100.00 [-100.00, -100.00] | -13.00 [-25.71, -0.29] | -20.50" in text
    assert "| a | 2 | -26.000 | -26.000 |" in text
    draw_report(values, tmp_path / "x.png")
    assert _outcome(runs[0], True, False) == "success 0.200, return -12.00 after 200 s of training"


def test_runs_that_choose_their_goals_have_a_panel_each_with_a_curve_for_each_goal_type(
    tmp_path: Path, finish: Finish
) -> None:
    def titles(*overrides: str) -> list[str]:
        experiment = plan.comparison(files(tmp_path / "configs", "a", "b"), overrides)
        runs = plan.runs(experiment, range(2), (*OVERRIDES, *overrides), tmp_path / "-".join(overrides))
        for run in runs[:-1]:
            finish(run, [0.1, 0.2])
        nonlocal values
        values = report(experiment, runs, 0.8, "")
        draw_report(values, tmp_path / "x.png")
        return [group["title"] for group in values["groups"]]

    values = dict[str, Any]()
    (tmp_path / "configs").mkdir()
    assert titles() == ["Success"]
    success = ["Greedy success: a", "Greedy success: b"]
    assert titles("goals=progress") == ["Success", "Episodes: a", "Episodes: b", *success]  # none has logged progress
    shares, rates = values["groups"][1], values["groups"][-2]
    assert {member["label"] for member in shares["members"]} == {"grasp", "grow"}
    assert [member["label"] for member in rates["members"]] == ["grasp", "overall"]
    assert rates["members"][0]["curves"]["0"]["eval_success"]["values"] == (0.1, 0.2)
    assert "| grasp | 2 | 0.100 | 0.200 |" in markdown(values, "x.png")
