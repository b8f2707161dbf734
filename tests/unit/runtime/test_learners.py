"""The group of ranks: whose result counts, and the errors of lost ranks."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from sacglam.errors import DivergenceError, LearnerError
from sacglam.runs.stopping import Stopped
from sacglam.runtime.group import Worker, WorkerLost
from sacglam.runtime.learners import LearnerGroup
from sacglam.types import Query, UpdateResult
from tests.unit.runtime.test_group import done, failed


class Rank(Worker):
    """A rank that answers with its number, or fails."""

    def __init__(self, number: int, error: Exception | None = None) -> None:
        self.number = number
        self.error = error

    def submit(self, method: str, *args: Any, reply: bool = True) -> Future[Any]:
        if self.error:
            return failed(self.error)
        return done(
            UpdateResult([{"rank": float(self.number)}] * len(args[0]), None) if method == "learn" else self.number
        )


def test_waiting_for_ranks_can_be_given_up() -> None:
    def stop() -> None:
        raise Stopped

    class Starting(Rank):
        def submit(self, method: str, *args: Any, reply: bool = True) -> Future[Any]:
            return Future()

    with pytest.raises(Stopped):
        LearnerGroup([Starting(0), Rank(1)], timeout_s=1).wait_ready(stop)


def test_the_first_rank_answers_for_all_and_updates_are_counted() -> None:
    group = LearnerGroup([Rank(0), Rank(1)], timeout_s=1)
    group.learn([[], []], 2, None)
    assert (group.begun, group.version, group.pending) == (2, 0, 1)
    assert group.finish().metrics == [{"rank": 0.0}] * 2
    assert (group.begun, group.version, group.pending) == (2, 2, 0)


def test_a_lost_rank_is_an_error_for_the_user() -> None:
    group = LearnerGroup([Rank(0, RuntimeError("connection closed")), Rank(1, WorkerLost("killed"))], timeout_s=1)
    group.learn([[]], 1, None)
    with pytest.raises(LearnerError, match=r"a learner rank was lost: killed\. --resume continues from the last"):
        group.finish()


def test_a_divergence_stays_what_it_is() -> None:
    group = LearnerGroup([Rank(0, DivergenceError("not finite")), Rank(1, RuntimeError("aborted"))], timeout_s=1)
    with pytest.raises(DivergenceError):
        group.publish(())


def test_another_failure_comes_down_to_its_last_line() -> None:
    group = LearnerGroup([Rank(0, RuntimeError("Traceback\n  File x\nKeyError: 7")), Rank(1)], timeout_s=1)
    with pytest.raises(LearnerError, match=r"^a learner rank failed: KeyError: 7$"):
        group.publish(())


class Scoring(Rank):
    """A rank of several that scores its share: the number of actions, and which rank said so."""

    def __init__(self, number: int, world: int) -> None:
        super().__init__(number)
        self.world = world

    def submit(self, method: str, *args: Any, reply: bool = True) -> Future[Any]:
        assert (method, args[1:], reply) in (("score", (), True), ("predict", ("judge",), True))
        return done([np.array([len(query.actions), self.number]) for query in args[0][self.number :: self.world]])


@pytest.mark.parametrize("states", [0, 1, 2, 7])
def test_ranks_that_score_share_the_states_and_answers_come_in_their_order(states: int) -> None:
    group = LearnerGroup([Scoring(number, 3) for number in range(3)], timeout_s=1)
    queries = [Query("state", ("a",) * (n + 1)) for n in range(states)]
    for answers in (group.log_policy(queries), group.predict("judge", queries)):
        assert [each.tolist() for each in answers] == [[n + 1, n % 3] for n in range(states)]
