"""MAGELLAN: what is drawn and taught, by hand, exact resumption, and a synthetic history of successes."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sacglam.config import parse
from sacglam.magellan import MagellanSource, area_under_curve
from sacglam.prompt import query
from sacglam.runtime.group import Worker
from sacglam.runtime.learners import LearnerGroup
from sacglam.types import Attempts, Classifiers, Query
from tests.unit.learner.test_learner import make_learner
from tests.unit.test_goals import GOALS, ended, kind, outcomes, share

NEVER = {goal: (0.0, 0.0) for goal in GOALS}


class Scripted:
    """A competence of these values, now and before, that notes what it is asked and taught."""

    def __init__(self, known: Mapping[str, tuple[float, float]]) -> None:
        self.known, self.taught = known, list[Sequence[Attempts]]()
        self.asked = 0

    def predict(self, name: str, queries: Sequence[Query]) -> list[npt.NDArray[np.float32]]:
        self.asked += 1
        return [np.array([self.known[goal[1:]] for goal in q.actions], np.float32).T for q in queries]

    def fit(self, name: str, *lesson: Any) -> None:
        self.taught += lesson


def source(classifiers: Classifiers, goals: Sequence[str] = GOALS, seed: int = 0) -> MagellanSource:
    settings = parse({"goals": "magellan"}).goals
    found = settings.build(goals, kind, np.random.default_rng(seed), query, classifiers)
    assert isinstance(found, MagellanSource)
    return found


def trusted(known: Mapping[str, tuple[float, float]], goals: Sequence[str] = GOALS) -> MagellanSource:
    """A source that has seen 4,000 episodes, with predictions for `easy 1` that separate success from failure."""
    starts = source(Scripted(known), goals)
    starts.observe(outcomes("never 1", *[0] * 3990) + outcomes("easy 1", *[1] * 10))
    return starts


@pytest.mark.parametrize(
    ("predicted", "expected"),
    [
        ([(0.9, True), (0.1, False)], 1.0),
        ([(0.9, True), (0.5, True), (0.5, False), (0.1, False)], 3.5 / 4),
        ([(0.2, True), (0.3, False)], 0.0),
    ],
)
def test_area_under_curve_by_hand(predicted: list[tuple[float, bool]], expected: float) -> None:
    assert area_under_curve(predicted) == expected
    assert math.isnan(area_under_curve(predicted[:1]))


def test_goals_are_drawn_in_proportion_to_the_change_of_their_competence() -> None:
    known = NEVER | {"easy 1": (0.9, 0.3), "hard 1": (0.1, 0.3), "hard 2": (0.009, 0.0)}
    starts = trusted(known)
    assert starts.progress(GOALS) == pytest.approx([0.6, 0, 0, 0.2, 0, 0])  # forgetting counts, less than 0.01 does not
    assert share(starts, lambda goal: goal == "easy 1") == pytest.approx(0.8 * 0.75 + 0.2 / 6, abs=0.03)
    assert share(starts, lambda goal: goal == "hard 1") == pytest.approx(0.8 * 0.25 + 0.2 / 6, abs=0.03)
    wanted = {"progress/easy": 0.2, "progress/hard": 0.1, "progress/never": 0.0}
    assert starts.metrics() == pytest.approx({"competence_trusted": 1.0, "competence_auc": 1.0, **wanted})


def test_without_a_good_estimate_goals_are_drawn_uniformly_and_nothing_is_scored() -> None:
    known = NEVER | {"easy 1": (0.9, 0.3)}
    scripted = Scripted(known)
    starts = source(scripted)
    assert starts.metrics() == {"competence_trusted": 0.0}
    starts.observe(outcomes("easy 1", 0, 0, 1, 1) + outcomes("never 1", 1, *[0] * 4000))
    starts.observe(outcomes("easy 1", 0) * 480 + outcomes("never 1", 1) * 20)
    asked = scripted.asked
    assert share(starts, lambda goal: goal == "easy 1") == pytest.approx(1 / 6, abs=0.03)
    assert starts.metrics() == {"competence_trusted": 0.0, "competence_auc": 0.0}
    assert scripted.asked == asked


def test_chance_among_few_successes_earns_no_trust() -> None:
    starts = source(Scripted(NEVER | {"easy 1": (0.9, 0.3)}))
    starts.observe(outcomes("never 1", *[0] * 480) + outcomes("easy 1", *[1] * 9))
    assert starts.metrics() == {"competence_trusted": 0.0, "competence_auc": 1.0}
    starts.observe(outcomes("easy 1", 1))
    assert starts.metrics()["competence_trusted"] == 1.0


def test_predictions_are_compared_with_outcomes_that_they_have_not_learnt_from() -> None:
    class Memory(Scripted):
        def fit(self, name: str, *lesson: Any) -> None:
            super().fit(name, *lesson)
            self.known = NEVER | {"easy 1": (1.0, 0.0)}

    starts = source(Memory(NEVER))
    starts.observe(outcomes("easy 1", *[1] * 20) + outcomes("never 1", *[0] * 20))
    assert starts.metrics()["competence_auc"] == 0.5


def test_the_starts_between_two_observations_share_64_candidates_that_are_scored_once() -> None:
    goals = [f"many {i}" for i in range(6400)]
    known = NEVER | {"easy 1": (1.0, 1.0)} | {goal: (0.5, 0.0) for goal in goals}
    starts = trusted(known, [*GOALS, *goals])
    scripted = starts.classifiers
    assert isinstance(scripted, Scripted)
    starts.observe(())
    asked, drawn = scripted.asked, {start.goal for start in islice(starts, 400)}
    assert 40 < len(drawn) <= 64
    assert scripted.asked == asked + 1
    starts.observe(())
    assert len(drawn & {start.goal for start in islice(starts, 400)}) < 5


def test_256_of_the_last_5000_outcomes_are_taught_recent_ones_more_often() -> None:
    scripted = Scripted(NEVER)
    starts = source(scripted)
    starts.observe(outcomes("easy 1", *[1] * 3000))
    for _ in range(20):
        starts.observe(outcomes("never 1", *[0] * 125))
    assert len(starts.state()["attempts"]) == 5000
    tries, wins = Counter[str](), Counter[str]()
    for each in scripted.taught[-1]:
        assert each.query.prompt == "Goal:"
        tries.update(dict(zip(each.query.actions, each.attempts, strict=True)))
        wins.update(dict(zip(each.query.actions, each.successes, strict=True)))
    assert sum(tries.values()) == 256
    assert wins == Counter({" easy 1": tries[" easy 1"]})
    # The older half has a quarter of the weight.
    assert tries[" easy 1"] == pytest.approx(256 / 4, abs=4 * math.sqrt(256 * 3 / 16))


def test_a_source_continues_exactly_from_its_state() -> None:
    known = NEVER | {"easy 1": (0.9, 0.3), "hard 1": (0.1, 0.3)}
    first, second = source(Scripted(known)), source(Scripted(known), seed=9)

    def play(starts: MagellanSource, luck: np.random.Generator) -> list[Any]:
        played = []
        for _ in range(60):
            batch = list(islice(starts, 5))
            starts.observe([ended(start.goal, bool(luck.random() < known[start.goal][0])) for start in batch])
            played += batch
        return played

    play(first, np.random.default_rng(0))
    second.load_state(json.loads(json.dumps(first.state())))
    second.rng.bit_generator.state = first.rng.bit_generator.state
    assert play(first, np.random.default_rng(1)) == play(second, np.random.default_rng(1))
    assert first.metrics() == second.metrics()
    assert first.classifiers.taught[60:] == second.classifiers.taught  # type: ignore[union-attr]


NAMES = {
    "never": [f"Grow {colour} {thing}" for colour in ("red", "blue", "green") for thing in ("door", "lamp", "chair")],
    "easy": [f"Grasp {colour} {thing}" for colour in ("red", "blue") for thing in ("cat", "dog", "door")],
    "hard": ["Grow red cat", "Grow blue dog"],
}
MOSTLY_IMPOSSIBLE = {goal: name for name, goals in NAMES.items() for goal in goals}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_synthetic_history_is_predicted_and_impossible_goals_make_no_progress(seed: int) -> None:
    learner = make_learner("goals=magellan", f"seed={seed}")
    group, rng = LearnerGroup([Worker(learner)], 60.0), np.random.default_rng(seed)
    settings = parse({"goals": "magellan"}).goals
    starts = settings.build(list(MOSTLY_IMPOSSIBLE), MOSTLY_IMPOSSIBLE.__getitem__, rng, query, group)
    practice, auc, impossible = Counter[str](), list[float](), list[float]()
    for _ in range(400):
        batch = []
        for start in islice(starts, 4):
            name = MOSTLY_IMPOSSIBLE[start.goal]
            needed = {"never": math.inf, "easy": 20, "hard": 150}[name]
            chance = 0.95 / (1 + math.exp(4 - 4 * practice[name] / needed)) if name != "never" else 0.005
            practice[name] += 1
            batch.append(ended(start.goal, bool(rng.random() < chance)))
        starts.observe(batch)
        said = starts.metrics()
        auc.append(said.get("competence_auc", math.nan))
        impossible.append(said.get("progress/never", 0.0))
    assert np.mean(auc[100:]) >= 0.9
    assert np.mean(impossible) < 0.02
