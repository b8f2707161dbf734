"""Competence: its loss by hand, that it learns, what it is compared with, and that it goes on from its state."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from sacglam.errors import CheckpointError
from sacglam.learner.backend import Backend
from sacglam.learner.competence import _AT_FIRST, Competence
from sacglam.learner.learner import Learner
from sacglam.prompt import query
from sacglam.types import Attempts, Query
from tests.unit.learner.test_learner import flat, make_learner, windows

GOALS = ("Grasp red cat", "Grow blue door", "Grasp any dog")
QUERIES = [query.judged("Goal:", GOALS[:2]), query.judged("Goal:", GOALS[2:])]


def make(*overrides: str) -> tuple[Learner, Competence]:
    learner = make_learner("goals=magellan", *overrides)
    found = learner.classifiers["competence"]
    assert isinstance(found, Competence)
    return learner, found


def attempts(asked: Query, *results: str) -> Attempts:
    """`results` has for each goal its outcomes, as `110` for two successes and a failure."""
    return Attempts(asked, tuple(map(len, results)), tuple(each.count("1") for each in results))


def now(found: Competence, queries: Sequence[Query] = QUERIES) -> list[float]:
    return [each for both in found.predict(queries) for each in both[0].tolist()]


def test_at_first_nothing_is_mastered_and_nothing_changes() -> None:
    _, found = make()
    first, second = found.predict(QUERIES)
    assert (first.shape, second.shape) == ((2, 2), (2, 1))
    assert np.array_equal(first[0], first[1])
    assert now(found) == pytest.approx([1 / (1 + math.exp(-_AT_FIRST))] * 3, abs=0.02)


def test_its_loss_is_the_cross_entropy_of_all_outcomes() -> None:
    _, found = make()
    cat, door, dog = now(found)
    loss = found.loss([attempts(QUERIES[0], "110", "0"), attempts(QUERIES[1], "10")])
    by_hand = -(2 * math.log(cat) + math.log(1 - cat) + math.log(1 - door) + math.log(dog) + math.log(1 - dog)) / 6
    assert loss.item() == pytest.approx(by_hand, rel=1e-4)


class Rank(Backend):
    """One of two ranks, which does not add the other's gradient."""

    world = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        return values


def gradient(batch: Sequence[Attempts], rank: Rank | None = None) -> Tensor:
    _, found = make()
    learnt = found._now
    learnt._backend = rank or learnt._backend
    learnt.add_gradient(batch, found.loss, lambda each: sum(each.attempts))
    return torch.cat([each.grad.flatten() for each in learnt.parameters.values() if each.grad is not None])


def test_rows_and_ranks_do_not_change_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sacglam.learner.classifier.ROWS", 1)
    whole = gradient([attempts(query.judged("Goal:", GOALS), "110", "0", "10")])
    parts = [attempts(QUERIES[0], "110", "0"), attempts(QUERIES[1], "10")]
    assert torch.allclose(gradient(parts), whole, rtol=1e-3, atol=1e-6)
    first, second = (gradient(parts, Rank(rank)) for rank in (0, 1))
    assert torch.allclose(first + second, whole, rtol=1e-3, atol=1e-6)
    assert not torch.allclose(2 * first, whole, rtol=1e-3, atol=1e-6)


def test_it_learns_which_goals_are_achieved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sacglam.learner.competence._RATE", 3e-3)
    learner, found = make()
    for _ in range(40):
        learner.fit("competence", [attempts(QUERIES[0], "1111", "0000"), attempts(QUERIES[1], "0000")])
    cat, door, dog = now(found)
    assert cat > 0.9
    assert max(door, dog) < 0.1


def test_it_is_compared_with_what_it_was_one_to_two_delays_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sacglam.learner.competence._DELAY", 3)
    learner, found = make()
    past = [now(found)]
    for update in range(1, 11):
        learner.fit("competence", [attempts(QUERIES[0], "1", "0")])
        past.append(now(found))
        before = [each for both in found.predict(QUERIES) for each in both[1].tolist()]
        assert before == past[max(0, update // 3 - 1) * 3]
    assert past[0] != past[3] != past[6]


def test_agent_and_competence_leave_each_other_alone() -> None:
    (learner, found), (other, _) = make(), make()
    agent, own = flat(learner, ""), found.state()
    for _ in range(2):  # the first changes one half of an adapter alone
        learner.fit("competence", [attempts(QUERIES[0], "1", "0")])
    assert torch.equal(flat(learner, ""), agent)
    taught = found.state()
    assert all(
        torch.equal(taught[name], own[name]) is not name.startswith("now.")
        for name in own
        if "adam" not in name and name != "updates"
    )
    assert learner.learn([windows()]).metrics == other.learn([windows()]).metrics
    assert all(torch.equal(each, taught[name]) for name, each in found.state().items())


def test_it_goes_on_from_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sacglam.learner.competence._DELAY", 3)
    (first, found), (second, other) = make(), make("seed=1")
    lesson = [attempts(QUERIES[0], "1", "0")]
    for _ in range(4):
        first.fit("competence", lesson)
    second.load_state(*first.state())
    for _ in range(3):
        first.fit("competence", lesson)
        second.fit("competence", lesson)
    assert all(torch.equal(each, other.state()[name]) for name, each in found.state().items())
    with pytest.raises(CheckpointError, match=r"head\."):
        other.load_state({})
