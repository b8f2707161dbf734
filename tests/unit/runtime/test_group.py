"""Calling workers: in this process, and what is raised when several fail."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from sacglam.errors import DivergenceError
from sacglam.runtime.group import Worker, WorkerLost, gather


def done(value: Any) -> Future[Any]:
    """A call that has returned."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def failed(error: Exception) -> Future[Any]:
    """A call that has raised."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def test_a_local_worker_calls_at_once() -> None:
    words: list[str] = []
    worker = Worker(words)
    worker.submit("append", "a")
    assert words == ["a"]
    assert worker.submit("index", "a").result() == 0


def test_results_come_in_order() -> None:
    assert gather([done(1), done(2), done(3)], timeout_s=1) == [1, 2, 3]


def test_the_death_comes_before_what_it_brought_about() -> None:
    echo, death = RuntimeError("connection closed by peer"), WorkerLost("killed")
    with pytest.raises(WorkerLost, match="killed"):
        gather([failed(echo), failed(death)], timeout_s=1)


def test_an_error_for_the_user_comes_before_others() -> None:
    with pytest.raises(DivergenceError):
        gather([failed(RuntimeError("aborted")), failed(DivergenceError("not finite"))], timeout_s=1)


def test_one_failure_is_enough_while_others_wait() -> None:
    with pytest.raises(WorkerLost, match="killed"):
        gather([Future(), failed(WorkerLost("killed"))], timeout_s=60)


def test_no_answer_in_time_is_a_loss() -> None:
    with pytest.raises(WorkerLost, match="no answer in 0 s from worker 1"):
        gather([done(1), Future()], timeout_s=0)
