"""Imagined goals: by hand, always new, the same whenever the known goals are the same; and pursued."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sacglam.build import build
from sacglam.collector import build_env
from sacglam.config import load
from sacglam.envs.playground import goals
from sacglam.goals import GoalSource
from sacglam.imagination import IMAGINED, Imagination, ImaginedGoals
from sacglam.partners import described
from sacglam.recording import record
from sacglam.scoring.base import UniformScorer
from sacglam.types import Decision, Episode, Observation, Step
from tests.conftest import TINY

REAL = ("Grasp red cat", "Grow red cat", "Grow any bug")
KNOWN = dict.fromkeys(REAL)


def drawn(known: dict[str, None], most: int = 64, seed: int = 0) -> list[str]:
    return Imagination().draw(known, most, np.random.default_rng(seed))


def test_a_word_gives_way_to_one_that_stands_in_its_place() -> None:
    assert drawn(KNOWN) == ["Grasp any bug"]  # `bug` and `cat` never stand in the same place
    found = drawn(KNOWN | {"Grow any cat": None})
    assert sorted(found) == ["Grasp any bug", "Grasp any cat", "Grasp red bug", "Grow red bug"]


def test_nothing_is_imagined_of_nothing_and_no_more_than_is_wanted() -> None:
    assert drawn({}) == drawn({"Reach the end": None}) == drawn(KNOWN, 0) == []
    assert len(drawn(dict.fromkeys(goals.goals(False, False)), 5)) == 5


@given(st.lists(st.text("ab ", max_size=5), unique=True), st.integers(0, 20))
def test_imagined_goals_are_new_and_differ(known: list[str], seed: int) -> None:
    found = drawn(dict.fromkeys(known), seed=seed)
    assert not {*found} & {*known}
    assert len({*found}) == len(found)


def test_goals_learnt_bit_by_bit_give_what_they_give_at_once() -> None:
    known, imagination = dict[str, None](), Imagination()
    for goal in goals.goals(False, False):
        known[goal] = None
        imagination.draw(known, 1, np.random.default_rng(0))
    assert imagination.draw(known, 64, np.random.default_rng(1)) == drawn(known, seed=1)


def test_most_held_out_goals_of_the_simple_game_can_be_imagined() -> None:
    found = drawn(dict.fromkeys(goals.goals(False, False)), 2000)
    possible = {*found} & {*goals.goals(False, True)}
    assert (len(found), len(possible)) == (132, 56)  # but `flower`, which no goal has, cannot


def pursuing(known: dict[str, None], share: float = 1.0) -> ImaginedGoals:
    rng = np.random.default_rng(0)

    def goal_type(goal: str) -> str:
        return "known" if goal in REAL or goal == "Grasp any bug" else IMAGINED

    return ImaginedGoals(REAL, rng, GoalSource(REAL, rng), lambda: known, goal_type, share)


def ended(goal: str, *achieved: str) -> Episode:
    step = Step(Observation("there", ("go",)), 0.0, achieved, False, True)
    return Episode(goal, Observation("here", ("go",)), (Decision(0, 0.0, 0),), (step,), 0)


def test_a_goal_that_was_imagined_and_named_is_pursued_in_the_scene_of_one_that_differs_by_a_word() -> None:
    starts = list(islice(pursuing({**KNOWN, "Grasp any bug": None}), 50))
    assert {start.goal for start in starts} == {"Grasp any bug"}  # the others are the environment's
    assert {start.scene for start in starts} == {"Grow any bug"}
    assert len({start.seed for start in starts}) == 50
    far = list(islice(pursuing({"Sing": None}), 200))
    assert {start.scene for start in far} == {*REAL}


def test_a_share_of_the_episodes_pursues_imagined_goals_once_there_are_any() -> None:
    known = dict(KNOWN)
    starts = pursuing(known, 0.25)
    assert [start.scene for start in islice(starts, 100)] == [None] * 100
    known["Grasp any bug"] = None
    share = sum(start.goal == "Grasp any bug" for start in islice(starts, 2000)) / 2000
    assert share == pytest.approx(0.25, abs=0.03)


def test_the_environments_goals_are_observed_by_their_source_and_the_others_are_counted() -> None:
    starts = pursuing({})
    seen = list[Episode]()
    starts.source.observe = seen.extend  # type: ignore[method-assign]
    done = [ended("Grow red cat"), ended("Grasp any bug", "Grasp any bug"), ended("Grasp any bug"), ended("Sing")]
    starts.observe(done)
    assert seen == done[:1]
    again = pursuing({})
    again.load_state(json.loads(json.dumps(starts.state())))
    expected = {"imagined_share": 3 / 4, "imagined_success": 1 / 3, "imagined_exist": 2 / 3}
    assert starts.metrics() == again.metrics() == expected
    assert starts.metrics() == {}  # since the last call


def test_an_imagined_goal_of_a_type_without_training_goals_is_kept_as_imagined() -> None:
    """Little-Zoo knows goals that are impossible; where none is trained, a judge may still name one."""
    partner = "partner={type: judge, imagine: 0.5}"
    config = load(
        overrides=[*TINY, "env={name: little_zoo, options: {impossible: 0}, copies: 2}", partner, "device=cpu"]
    )
    env, buffer = build_env(config), build(config).collector.experience.buffer
    [episode] = record(lambda: build_env(config), UniformScorer(), 1)
    scene = episode.goal.partition(" among ")[2]
    goals = [f"Grow {name} among {scene}" for name in scene.split(", ")]
    named = next(goal for goal in goals if env.goal_type(goal) == "impossible")
    buffer.add(described(episode, [[named], *[[]] * (len(episode.steps) - 1)]))
    assert len(buffer) >= len(episode.steps)
