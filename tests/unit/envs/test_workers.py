"""Copies of an environment in worker processes: the same answers, at the same time, and faults that are explained."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from sacglam.clock import PhaseClock
from sacglam.envs import TextEnv, check_env, make
from sacglam.envs.workers import call_all, close_workers, in_workers, process_ids
from sacglam.errors import ConfigError, EnvironmentContractError, SacglamError
from sacglam.goals import GoalSource
from sacglam.policy import SamplingPolicy
from sacglam.recording import record
from sacglam.rollout import Rollout
from sacglam.scoring.base import UniformScorer
from sacglam.types import Episode, Observation, Step

HERE = __name__


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    close_workers()


class Meeting(TextEnv):
    """A step ends when as many copies are within one as `copies` says."""

    def __init__(self, folder: str, copies: int) -> None:
        self.folder, self.copies = Path(folder), copies

    def goals(self, split: str) -> Sequence[str]:
        return ("Meet",)

    def goal_type(self, goal: str) -> str:
        return "meet"

    def reset(self, goal: str, seed: int) -> Observation:
        return Observation("alone", ("Wait",))

    def step(self, action: int) -> Step:
        print("a step")  # must not get between the answers
        (self.folder / str(id(self))).with_suffix(f".{os.getpid()}").touch()
        deadline = time.monotonic() + 30
        while len(list(self.folder.iterdir())) < self.copies:
            assert time.monotonic() < deadline, "nobody came"
            time.sleep(0.01)
        return Step(Observation("together", ("Wait",)), 1.0, ("Meet",), True, False)


class Faulty(Meeting):
    """Breaks in the way that its folder names."""

    def step(self, action: int) -> Step:
        if self.folder.name == "raise":
            raise ZeroDivisionError("in the world's own code")
        if self.folder.name == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return Step(Observation("", ("Wait",)), 0.5, (), False, False)


class Advised(Meeting):
    """Knows what to do in the episode that it plays."""

    def reset(self, goal: str, seed: int) -> Observation:
        self.good = seed % 2
        return Observation("here", ("Stay", "Leave"))

    def step(self, action: int) -> Step:
        met = action == self.good
        return Step(Observation("there", ("Wait",)), float(met), ("Meet",) * met, met, not met)

    def expert(self) -> int | None:
        return self.good


class Talkative(Meeting):
    """Reads stdin and writes to stdout, itself and in processes of its own; one of these outlives it."""

    def reset(self, goal: str, seed: int) -> Observation:
        read = [sys.stdin.read(), subprocess.run(["cat"], capture_output=True, text=True, check=True).stdout]
        os.write(1, b"a line\n")
        subprocess.run(["echo", "another"], check=True)
        return Observation("".join(read), ("Wait",))

    def step(self, action: int) -> Step:
        if os.fork():
            os._exit(7)
        time.sleep(5)  # in a child, which holds all that the worker held
        os._exit(0)


class Closing(Meeting):
    """Closes what it did not open."""

    def step(self, action: int) -> Step:
        os.closerange(3, 100)
        return Step(Observation("", ("Wait",)), 0.0, (), False, False)


class Leaving(Advised):
    """Notes that it was closed."""

    def close(self) -> None:
        (self.folder / str(id(self))).touch()


class Threaded(Advised):
    """Has a thread that would keep its process for a minute."""

    def reset(self, goal: str, seed: int) -> Observation:
        Thread(target=time.sleep, args=(60,)).start()
        print("bye")
        return super().reset(goal, seed)


class Refusing(Meeting):
    """Has an error of its own for the user."""

    def step(self, action: int) -> Step:
        raise Refusal("not today")


class Refusal(SacglamError):
    """One that sacglam does not know."""


class Long(Meeting):
    """Its goal and its texts have a thousand characters for each copy."""

    def goals(self, split: str) -> Sequence[str]:
        return ("Meet" * 250 * self.copies,)

    def reset(self, goal: str, seed: int) -> Observation:
        return Observation(goal, ("Wait",))


def episodes(envs: list[TextEnv]) -> list[Episode]:
    starts = GoalSource(envs[0].goals("train"), np.random.default_rng(0))
    rollout = Rollout(envs, UniformScorer(), SamplingPolicy(np.random.default_rng(1)), starts, PhaseClock())
    played = [*rollout.collect(200).episodes]
    again = Rollout(envs, UniformScorer(), SamplingPolicy(np.random.default_rng(2)), starts, PhaseClock())
    again.restore(rollout.state())
    return [*played, *again.collect(100).episodes]


def test_the_same_episodes_in_the_same_order() -> None:
    options: dict[str, Any] = {"max_steps": 7}
    here = episodes([make("playground", **options) for _ in range(5)])
    assert len(here) > 30
    assert here == episodes([in_workers("playground", options, 2) for _ in range(5)])


def test_goals_planner_and_contract() -> None:
    env, plain = in_workers("playground", {}, 1), make("playground")
    for split in ("train", "heldout"):
        assert env.goals(split) == plain.goals(split)
    goal = plain.goals("train")[0]
    assert env.reset(goal, 3) == plain.reset(goal, 3)
    assert env.optimal_length() == plain.optimal_length()
    assert env.goal_type(goal) == plain.goal_type(goal)
    assert check_env(lambda: in_workers("playground", {}, 1), episodes=3).episodes == 3


@pytest.mark.parametrize(
    ("name", "options"), [("playground_simple", {}), (f"{HERE}:Advised", {"folder": "", "copies": 1})]
)
def test_demonstrations_of_planners_and_experts_come_from_workers(name: str, options: dict[str, Any]) -> None:
    here = [*record(lambda: make(name, **options), None, 3)]
    assert here == [*record(lambda: in_workers(name, options, 2), None, 3)]
    assert all(episode.success for episode in here)


def test_copies_step_at_the_same_time(tmp_path: Path) -> None:
    envs = [in_workers(f"{HERE}:Meeting", {"folder": str(tmp_path), "copies": 3}, 3) for _ in range(3)]
    assert [seen.text for seen in call_all("reset", [(env, ["Meet", seed]) for seed, env in enumerate(envs)])] == [
        "alone"
    ] * 3
    assert all(step.terminated for step in call_all("step", [(env, [0]) for env in envs]))


@pytest.mark.parametrize(
    ("fault", "message"),
    [("raise", "ZeroDivisionError: in the world's own code"), ("die", "died of signal 9"), ("reward", "got 0.5")],
)
def test_a_fault_says_what_happened_and_the_next_call_gets_new_workers(fault: str, message: str) -> None:
    options = {"folder": fault, "copies": 1}
    envs = [in_workers(f"{HERE}:Faulty", options, 2) for _ in range(4)]
    call_all("reset", [(env, ["Meet", 0]) for env in envs])
    with pytest.raises(EnvironmentContractError, match=message):
        call_all("step", [(env, [0]) for env in envs])
    assert in_workers(f"{HERE}:Faulty", options, 2).reset("Meet", 0).text == "alone"


def test_stdin_and_stdout_are_the_environment_s(capfd: pytest.CaptureFixture[str]) -> None:
    env = in_workers(f"{HERE}:Talkative", {"folder": "", "copies": 1}, 1)
    assert env.reset("Meet", 0) == Observation("", ("Wait",))
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "a line\nanother\n")


@pytest.mark.parametrize(
    ("name", "message"),
    [("Talkative", "ended with code 7"), ("Closing", "ended with code 1"), ("Refusing", "not today")],
)
def test_a_worker_that_ends_is_noticed(name: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    env = in_workers(f"{HERE}:{name}", {"folder": "", "copies": 1}, 1)
    env.reset("Meet", 0)
    with pytest.raises(EnvironmentContractError, match=message):
        env.step(0)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("closed", ["<&-", "<&- 2>&-"])
def test_workers_start_where_stdin_or_stderr_is_closed(closed: str) -> None:
    code = "from sacglam.envs.workers import in_workers as w; print(w('bitflip', {}, 1).reset('a b c d e f g h', 0))"
    command = ["sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("Observation"), done


def test_copies_are_closed_when_they_are_dropped_and_when_a_worker_ends(tmp_path: Path) -> None:
    envs = [in_workers(f"{HERE}:Leaving", {"folder": str(tmp_path), "copies": 1}, 1) for _ in range(2)]
    call_all("reset", [(env, ("Meet", 0)) for env in envs])
    envs.pop()
    assert not list(tmp_path.iterdir())
    envs[0].step(0)  # a message says which were dropped
    assert len(list(tmp_path.iterdir())) == 1
    close_workers()
    assert len(list(tmp_path.iterdir())) == 3  # and the one in this process


def test_threads_of_an_environment_do_not_keep_a_worker(capfd: pytest.CaptureFixture[str]) -> None:
    env = in_workers(f"{HERE}:Threaded", {"folder": "", "copies": 1}, 1)
    env.reset("Meet", 0)
    process = env.worker.process
    close_workers()
    assert process.returncode == 0
    assert "bye" in capfd.readouterr().err


def test_an_unknown_environment_is_refused_before_workers_start() -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        in_workers("nowhere", {}, 2)
    assert process_ids() == []


def test_calls_and_answers_that_no_pipe_holds() -> None:
    """32 calls of 32 kB to one worker, with as long answers: while it waits for those to be read, it reads no call."""
    copies = 32
    envs = [in_workers(f"{HERE}:Long", {"folder": "", "copies": copies}, 1) for _ in range(copies)]
    (goal,) = envs[0].goals("train")
    assert call_all("reset", [(env, (goal, 0)) for env in envs]) == [Observation(goal, ("Wait",))] * copies
