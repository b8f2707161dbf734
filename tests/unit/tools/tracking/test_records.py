"""What a run's files become in a run explorer."""

from __future__ import annotations

from sacglam.config import parse
from sacglam.tools.tracking.records import Point, SampledEpisode, algorithm, as_text, of_metrics, of_samples, of_summary

EPISODE = {
    "goal": "Grasp red tea",
    "goal_type": "grasp",
    "success": True,
    "steps": [
        {
            "observation": "You see: red tea",
            "actions": ["Go to red tea", "Grasp"],
            "probabilities": [0.25, 0.75],
            "q": [-0.5, 0.125],
            "taken": 0,
            "achieved": ["Go to red tea"],
        }
    ],
}


def test_success_has_a_context_and_each_context_has_the_axes() -> None:
    line = {"env_steps": 320, "updates": 8, "seconds": 1.5, "success": 0.5, "success/grasp": 0.25, "entropy": 1.0}
    overall, grasp = ({"subset": "train", "goal_type": kind} for kind in ("overall", "grasp"))
    expected = [
        Point("success", 0.5, 320, overall),
        Point("success", 0.25, 320, grasp),
        Point("entropy", 1.0, 320, {}),
        *(Point(axis, x, 320, c) for c in (overall, grasp, {}) for axis, x in (("updates", 8), ("seconds", 1.5))),
    ]
    assert of_metrics(line) == expected


def test_training_and_evaluation_are_separate_subsets() -> None:
    line = {"env_steps": 1, "updates": 1, "seconds": 1.0, "eval_success/overall": 0.5, "success/grow": 0.25}
    found = {(p.context["subset"], p.context["goal_type"]): p.value for p in of_metrics(line) if p.name == "success"}
    assert found == {("eval", "overall"): 0.5, ("train", "grow"): 0.25}


def test_what_is_known_by_goal_type_has_it_as_its_context() -> None:
    line = {"env_steps": 1, "goal_share/grasp": 0.25, "progress/grow": 0.5}
    assert of_metrics(line) == [
        Point("goal_share", 0.25, 1, {"goal_type": "grasp"}),
        Point("progress", 0.5, 1, {"goal_type": "grow"}),
    ]


def test_an_axis_is_never_zero_since_aim_would_take_it_for_missing() -> None:
    axes = [p.value for p in of_metrics({"env_steps": 1, "updates": 0, "seconds": 0.0, "q": 0.0}) if p.name != "q"]
    assert len(axes) == 2
    assert all(0 < float(str(x)) < 1e-3 for x in axes)


def test_the_summary_gives_the_evaluations_before_and_after() -> None:
    summary = {
        "success_before": {"overall": 0.1},
        "success_after": {"overall": 0.9},
        "spl_before": 0.05,
        "env_steps": 64,
    }
    found = of_summary({**summary, "spl_after": None, "updates": 6, "train_seconds": 3.0})
    context = {"subset": "eval", "goal_type": "overall"}
    success = [p for p in found if p.name == "success"]
    assert success == [Point("success", 0.1, 0, context), Point("success", 0.9, 64, context)]
    assert [(p.value, p.step) for p in found if p.name == "spl"] == [(0.05, 0)]
    assert [p.value for p in found if p.name == "seconds" and p.step == 64] == [3.0]


def test_held_out_goals_are_a_point_at_the_end() -> None:
    found = of_summary({"env_steps": 64, "success_after": {"overall": 0.9}, "success_heldout": {"grow": 0.5}})
    assert Point("success", 0.5, 64, {"subset": "heldout", "goal_type": "grow"}) in found
    assert len([point for point in found if point.name == "success"]) == 2


def test_numbers_are_floats_since_aim_refuses_large_ints() -> None:
    points = of_metrics({"env_steps": 32, "updates": 2**64, "q": 2**64})
    assert [(point.name, point.value, type(point.value)) for point in points] == [
        ("q", 2.0**64, float),
        ("updates", 2.0**64, float),
    ]


def test_a_summary_of_a_run_that_has_just_started_gives_nothing() -> None:
    assert of_summary({}) == []
    assert {p.step for p in of_summary({"success_before": {"overall": 0.1}, "success_after": None})} == {0}


def test_samples_give_texts_and_distributions_over_all_states() -> None:
    context = {"subset": "train"}
    assert of_samples({"env_steps": 32, "episodes": [EPISODE, EPISODE]}) == [
        Point("episodes", [as_text(SampledEpisode.model_validate(EPISODE))] * 2, 32, context),
        Point("action_probabilities", [0.25, 0.75, 0.25, 0.75], 32, context),
        Point("q_values", [-0.5, 0.125, -0.5, 0.125], 32, context),
    ]


def test_an_episode_reads_from_top_to_bottom_with_its_likeliest_action_first() -> None:
    assert as_text(SampledEpisode.model_validate(EPISODE)).splitlines() == [
        "Goal: Grasp red tea   (grasp, success in 1 steps)",
        "",
        "--- step 1 ---",
        "You see: red tea",
        "  0.750  Q +0.125  Grasp",
        "> 0.250  Q -0.500  Go to red tea",
        "achieved: Go to red tea",
    ]


def test_an_algorithm_without_q_values_has_episodes_all_the_same() -> None:
    steps = [{**EPISODE["steps"][0], "q": []}]  # type: ignore[index]
    line = {"env_steps": 32, "episodes": [{**EPISODE, "steps": steps}]}
    assert [p.name for p in of_samples(line)] == ["episodes", "action_probabilities"]


def test_hindsight_is_in_the_algorithm_s_name() -> None:
    assert algorithm(parse({})) == "SAC+HER"
    assert algorithm(parse({"replay": {"hindsight": "none"}})) == "SAC"
