"""Engines and learner ranks in separate processes: the same run as in one process, and the effects of faults.

Most tests use a stand-in for vLLM, which starts in seconds. vLLM itself uses the same group, gate and hand-off.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import T5, call, sacglam
from tests.integration.processes import below, left_after, listening_beyond_loopback, titled
from tests.launcher import Launched, start
from tests.often import often
from tests.with_stand_in import stood_in

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed; see docs/start/install.md"),
]
needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")

SMALL = [
    "steps=640",
    "algo.lr_decay=false",  # so that a run of half the steps is the beginning of this one
    "env.copies=16",
    "algo.update_interval=32",
    "algo.updates_per_interval=2",
    "algo.batch_size=16",
    "algo.actor_lr=4e-4",  # at the default rates ten updates turn a difference in the last digit into 0.3 %
    "algo.critic_lr=4e-4",
    "algo.warmup_updates=4",
    "critic.hidden=[16]",
    "evaluation.episodes=8",
    "tracking.to=[]",
]
ENGINE = "engines.count=1"
HALF = "steps=320"
T5_SETTINGS = [T5, "model.lora.rank=4", "threads=1", "steps=192"]


def train(out: Path, *overrides: str, **options: str) -> list[str]:
    """The command of a small run on the CPU, whose engines, if any, are stand-ins."""
    words = [word for o in [*SMALL, *overrides] for word in ("--set", o)]
    return stood_in(sacglam("train", "--out", out, "--device", "cpu", *words, **options))


def resume(run: Path, **options: str) -> list[str]:
    """The command that resumes it."""
    return stood_in(sacglam("train", "--resume", run, **options))


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "cpu_seconds", "parity_gap")} for line in lines]


def gaps(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["parity_gap"] for line in lines if "parity_gap" in line]


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


@contextmanager
def started(command: list[str], log: Path, **variables: str) -> Iterator[Launched]:
    """A run in a process group of its own, which is ended afterwards."""
    with log.open("wb") as output:
        env = {**os.environ, **variables}
        process = start(command, output, subprocess.STDOUT, env=env, start_new_session=True)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def lines(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def wait_for_lines(run: Path, count: int, process: Launched, log: Path) -> None:
    deadline = time.monotonic() + 240
    while lines(run) < count:
        assert process.poll() is None, f"the run ended early: {log.read_text()[-2000:]}"
        assert time.monotonic() < deadline, f"waited 240 s for {count} lines of metrics: {log.read_text()[-2000:]}"
        time.sleep(0.02)


def wait_for(condition: Callable[[], bool], process: Launched) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished, undisturbed run with an engine."""
    out = tmp_path_factory.mktemp("runs") / "calm"
    done = call(train(out, ENGINE, "threads=1"))
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def t5_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of an encoder-decoder in one process."""
    out = tmp_path_factory.mktemp("runs") / "t5"
    done = call(train(out, *T5_SETTINGS))
    assert done.returncode == 0, done.stderr
    return out


def assert_close(run: Path, reference: Path) -> None:
    """A run made the same decisions as another, maybe longer one, and their numbers differ by float error at most."""
    steps = summary(run)["env_steps"]
    assert steps > 0
    expected = [line for line in metrics(reference) if line["env_steps"] <= steps]
    for one, other in zip(metrics(run), expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name] == pytest.approx(other[name], rel=1e-3, abs=1e-3), (name, one, other)


def test_a_separate_engine_changes_nothing(calm: Path, tmp_path: Path) -> None:
    assert call(train(tmp_path / "one", "threads=1")).returncode == 0
    assert_close(calm, tmp_path / "one")
    assert len(gaps(calm)) >= 3
    assert max(gaps(calm)) <= 1e-4
    assert summary(calm)["updates"] > 30
    assert summary(calm)["engine_restarts"] == 0


@needs_deepspeed
def test_three_ranks_that_score_train_as_one_process_does(calm: Path, tmp_path: Path) -> None:
    """The calm run has an engine, which changes nothing. With stage 3 a forward pass is a collective of all ranks."""
    run = tmp_path / "ranks"
    done = call(train(run, "threads=1", HALF, "learners.zero_stage=3", learners="3"))
    assert done.returncode == 0, done.stderr
    assert_close(run, calm)
    assert (summary(run)["engines"], summary(run)["learners"]) == (0, 3)
    again = call(resume(run, learners="0"))
    assert again.returncode == 0, again.stderr


@needs_deepspeed
@needs_vllm
def test_vllm_and_two_ranks_train_as_one_process_does(calm: Path, tmp_path: Path) -> None:
    run = tmp_path / "full"
    words = [word for each in [*SMALL, HALF, "threads=1"] for word in ("--set", each)]
    command = sacglam("train", "--out", run, *words, device="cpu", engines="1", learners="2")
    done = call(often(command), fresh=True)
    assert done.returncode == 0, done.stderr
    assert_close(run, calm)
    assert len(gaps(run)) >= 3
    assert max(gaps(run)) <= 1e-4
    assert set(summary(run)["versions"]) >= {"ray", "deepspeed"}
    assert (run / "adapter" / "adapter_model.safetensors").exists()


@pytest.mark.nightly
@needs_deepspeed
def test_two_ranks_train_an_encoder_decoder_as_one_process_does(t5_alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = call(train(run, *T5_SETTINGS, "learners.zero_stage=3", learners="2"))
    assert done.returncode == 0, done.stderr
    assert_close(run, t5_alone)


def test_engines_for_an_encoder_decoder_are_refused(tmp_path: Path) -> None:
    done = call(train(tmp_path / "run", T5, "threads=1", engines="1"))
    assert done.returncode == 1
    assert "set engines.count to 0 (--engines 0), so that the learner scores" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_lost_engines_leave_no_trace_in_the_data(calm: Path, tmp_path: Path) -> None:
    """No transition is lost or doubled: every metric, those of the replay among them, is the undisturbed run's.

    One engine is killed before its first answer, others at random moments (SACGLAM_ENGINE_KILLS of them, by default
    one), and one more is stopped.
    """
    run, log = tmp_path / "run", tmp_path / "log"
    faults = [signal.SIGKILL] * int(os.environ.get("SACGLAM_ENGINE_KILLS", "1")) + [signal.SIGSTOP]
    with started(train(run, ENGINE, "threads=1"), log, SACGLAM_TIMEOUT_S="10") as process:
        wait_for(lambda: len(titled(process.pid, "ray::Engine")) == 1, process)
        os.kill(titled(process.pid, "ray::Engine")[0].pid, signal.SIGKILL)
        for number, fault in enumerate(faults):
            wait_for(lambda number=number: log.read_text().count("restarting it") == number + 1, process)
            # Once another interval is done, the new engine has answered.
            wait_for_lines(run, max(lines(run) + 1, 1 + number * 17 // len(faults)), process, log)
            time.sleep(random.random() / 2)  # a truly random moment: any must do
            (engine,) = titled(process.pid, "ray::Engine")
            os.kill(engine.pid, fault)
        assert process.wait(timeout=300) == 0, log.read_text()
        assert left_after([engine], 1) == []
    assert metrics(run) == metrics(calm)
    assert summary(run)["engine_restarts"] == len(faults) + 1
    assert log.read_text().count("restarting it") == len(faults) + 1
    assert "no answer in 10 s" in log.read_text()


@needs_deepspeed
def test_a_learner_rank_that_dies_ends_the_run_with_its_cause(calm: Path, tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    with started(train(run, "threads=1", learners="2"), log) as process:
        wait_for_lines(run, 8, process, log)
        everything = below(process.pid)
        assert listening_beyond_loopback(everything) == []
        os.kill(titled(process.pid, "ray::LearnerRank")[1].pid, signal.SIGKILL)
        assert process.wait(timeout=60) == 1
        assert left_after(everything, 30) == []
    message = log.read_text().partition("error:")[2]
    assert "a learner rank was lost" in message.splitlines()[0]
    # It resumes from its checkpoint, with other numbers of ranks and engines.
    done = call(resume(run, engines="0", learners="0", device="cpu"))
    assert done.returncode == 0, done.stderr
    assert_close(run, calm)


@pytest.mark.nightly
@needs_deepspeed
def test_a_rank_that_dies_during_an_evaluation_is_noticed_there(tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    with started(train(run, ENGINE, "threads=1", "evaluation.episodes=2000", learners="1"), log) as process:
        wait_for(lambda: "evaluating before" in log.read_text(), process)
        os.kill(titled(process.pid, "ray::LearnerRank")[0].pid, signal.SIGKILL)
        assert process.wait(timeout=30) == 1
    assert "a learner rank was lost" in log.read_text()


@needs_deepspeed
def test_ctrl_c_ends_all_processes_and_the_run_resumes_in_one(tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    with started(train(run, ENGINE, "threads=1", "tracking.to=[aim]", learners="1"), log) as process:
        wait_for_lines(run, 8, process, log)
        everything = below(process.pid)
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C in a terminal does: to all of the group
        assert process.wait(timeout=60) == 0, log.read_text()
        assert "Traceback" not in log.read_text()
        assert left_after(everything, 60) == []
    done = call(resume(run, engines="0", learners="0"))
    assert done.returncode == 0, done.stderr
    assert summary(run)["finished"]
    assert summary(run)["env_steps"] == 640


@needs_deepspeed
def test_ctrl_c_while_two_ranks_start_ends_the_run_before_its_first_step(tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    with started(train(run, ENGINE, "threads=1", learners="2"), log) as process:
        wait_for(lambda: "starting processes" in log.read_text(), process)
        everything = below(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=60) == 0, log.read_text()
        assert left_after(everything, 60) == []
    assert "stopped before the first step; resume" in " ".join(log.read_text().split())
    assert sorted(path.name for path in run.iterdir()) == [".lock", "config.yaml"]


@needs_deepspeed
def test_lag_bounds_staleness_nothing_outlives_a_killed_driver_and_its_run_resumes(tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    whole = tmp_path / "whole"
    assert call(train(whole, ENGINE, "threads=1", HALF, "runtime.lag=1", learners="1")).returncode == 0
    ages = [line["staleness"] for line in metrics(whole)]
    assert max(ages) == 2  # one interval of two updates
    assert metrics(whole)[-1]["updates"] == summary(whole)["updates"] > 10
    settings = [ENGINE, "threads=1", HALF, "runtime.lag=1", "tracking.to=[aim]"]
    with started(train(run, *settings, learners="1"), log) as process:
        wait_for_lines(run, 6, process, log)  # past the first checkpoint
        everything = below(process.pid)
        process.kill()
        process.wait()
        assert left_after(everything, 60) == []
    assert call(resume(run)).returncode == 0
    assert metrics(run) == metrics(whole)
