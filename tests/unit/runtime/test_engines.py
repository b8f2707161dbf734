"""The engine group against engines that answer, die, hang and lie."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from sacglam.errors import EngineBroken, EngineError
from sacglam.runtime.engines import EngineGroup
from sacglam.runtime.group import Worker, WorkerLost
from sacglam.scoring.base import Engine
from sacglam.types import Adapter, LogPolicy, Query
from tests.unit.runtime.test_group import done, failed


class ByText(Engine):
    """An engine whose policy shows the query and the engine's version."""

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        return [np.array([float(q.prompt), self.version], dtype=np.float32) for q in queries]

    def load(self, adapter: Adapter) -> None:
        self.version = adapter.version


HANGS = Exception("never answers")


class Mortal(Worker):
    """A worker over a `ByText`. Each call meets the next of `faults`; None is a call that succeeds."""

    def __init__(self, faults: list[Exception | None]) -> None:
        self.engine = ByText()
        self.faults = faults
        self.dead: Exception | None = None
        self.killed = False

    def submit(self, method: str, *args: Any, reply: bool = True) -> Future[Any]:
        self.dead = self.dead or (self.faults.pop(0) if self.faults else None)
        if self.dead is HANGS:
            return Future()
        return failed(self.dead) if self.dead else done(getattr(self.engine, method)(*args))

    def kill(self) -> None:
        self.killed = True


def group(*lives: list[Exception | None], count: int = 1) -> tuple[EngineGroup, list[Mortal]]:
    """A group whose engines, in the order they start, meet the faults in `lives`, and then none."""
    workers: list[Mortal] = []

    def start(index: int) -> Mortal:
        workers.append(Mortal(list(lives[len(workers)]) if len(workers) < len(lives) else []))
        return workers[-1]

    notes: list[str] = []
    return EngineGroup(start, count, 1, notes.append), workers


QUERIES = [Query(str(i), ("a", "b")) for i in range(5)]
DEATH = WorkerLost("gone")


def prompts(policies: Sequence[LogPolicy]) -> list[float]:
    return [float(p[0]) for p in policies]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7])
def test_states_are_split_and_come_back_in_order(count: int) -> None:
    engines, _ = group(count=count)
    assert prompts(engines.log_policy(QUERIES)) == [0, 1, 2, 3, 4]
    assert engines.log_policy([]) == []


def test_each_engine_is_asked_all_for_the_parity_gate() -> None:
    engines, _ = group(count=2)
    assert [prompts(policies) for policies in engines.log_policy_of_each(QUERIES)] == [[0, 1, 2, 3, 4]] * 2


def test_an_adapter_reaches_all_and_is_the_version_of_what_follows() -> None:
    engines, _ = group(count=2)
    assert engines.version == 0
    engines.load(Adapter(7, {}))
    assert engines.version == 7
    assert [float(p[1]) for p in engines.log_policy(QUERIES)] == [7] * 5


def test_a_dead_engine_is_replaced_with_the_newest_adapter_and_asked_again() -> None:
    engines, workers = group([None, DEATH])
    engines.load(Adapter(3, {}))
    policies = engines.log_policy(QUERIES)
    assert prompts(policies) == [0, 1, 2, 3, 4]
    assert [float(p[1]) for p in policies] == [3] * 5
    assert engines.restarts == 1
    assert workers[0].killed
    assert not workers[1].killed


def test_an_engine_that_dies_again_while_it_starts_is_replaced_again() -> None:
    engines, _ = group([None, DEATH], [None, DEATH], [DEATH])
    engines.load(Adapter(3, {}))
    assert [float(p[1]) for p in engines.log_policy(QUERIES)] == [3] * 5
    assert engines.restarts == 3


def test_an_engine_that_dies_while_it_loads_is_replaced() -> None:
    engines, _ = group([None, DEATH])
    engines.wait_ready()
    engines.load(Adapter(4, {}))
    assert [float(p[1]) for p in engines.log_policy(QUERIES)] == [4] * 5


def test_a_hung_engine_counts_as_lost() -> None:
    engines, workers = group([None, None, HANGS])
    engines.wait_ready()
    engines.log_policy(QUERIES)
    assert prompts(engines.log_policy(QUERIES)) == [0, 1, 2, 3, 4]
    assert workers[0].killed


def test_restarts_are_bounded() -> None:
    engines, _ = group([None, DEATH], *[[DEATH]] * 10)
    engines.wait_ready()
    with pytest.raises(EngineError, match=r"lost \(gone\), and the 10 restarts of a run are used up"):
        engines.log_policy(QUERIES)


def test_an_engine_that_dies_before_its_first_answer_is_replaced() -> None:
    engines, workers = group([DEATH], [DEATH])
    engines.wait_ready()
    assert engines.restarts == 2
    assert prompts(engines.log_policy(QUERIES)) == [0, 1, 2, 3, 4]
    assert [worker.killed for worker in workers] == [True, True, False]


def test_a_broken_engine_is_replaced_as_a_dead_one() -> None:
    engines, workers = group([None, EngineBroken("cuda error")])
    engines.wait_ready()
    assert prompts(engines.log_policy(QUERIES)) == [0, 1, 2, 3, 4]
    assert workers[0].killed


def test_waiting_can_be_given_up() -> None:
    def give_up() -> None:
        raise KeyboardInterrupt

    engines, _ = group([HANGS])
    with pytest.raises(KeyboardInterrupt):
        engines.wait_ready(give_up)


def test_scores_of_another_version_are_refused() -> None:
    engines, workers = group()
    engines.load(Adapter(3, {}))
    workers[0].engine.load(Adapter(2, {}))
    with pytest.raises(EngineError, match=r"version 3, got versions \[2\]"):
        engines.log_policy(QUERIES)
