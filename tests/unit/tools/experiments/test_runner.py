"""The runner's hold on its folder and its processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sacglam import config as configuration
from sacglam.errors import ConfigError, RunDirectoryError
from sacglam.runs.directory import locked_folder
from sacglam.runs.display import Display
from sacglam.runtime.placement import Machine
from sacglam.tools.experiments import plan, runner
from tests.unit.tools.experiments.conftest import Finish

DEAF = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"


@dataclass(frozen=True)
class Scripted(plan.Run):
    """A run whose process is a Python program of the test's own."""

    program: str = ""

    def command(self) -> list[str]:
        return [sys.executable, "-c", self.program]


def scripted(folder: Path, program: str, seed: int = 0) -> Scripted:
    variant = plan.Variant(base=configuration.QUICKSTART)
    return Scripted(variant, seed, (), folder, program)


def test_a_process_that_outlives_its_caller_keeps_the_folder(tmp_path: Path) -> None:
    with locked_folder(tmp_path, "busy") as lock:
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=[lock])
    try:
        with pytest.raises(RunDirectoryError, match="is using"):
            runner.run_all([], 1, tmp_path, Display())
    finally:
        left.kill()
        left.wait()
    assert runner.run_all([], 1, tmp_path, Display())


class Shown(Display):
    """Keeps what is shown."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.done: list[int] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def advance(self, done: int) -> None:
        self.done.append(done)


def test_failures_end_with_the_log_and_the_next_run_begins(tmp_path: Path) -> None:
    runs = [
        scripted(tmp_path, "print('one'); raise SystemExit('no memory')"),
        scripted(tmp_path, "print('exit code 0, but no summary')", seed=1),
    ]
    shown = Shown()
    assert not runner.run_all(runs, 1, tmp_path, shown)
    begun, *rest = shown.notes
    assert begun.startswith("2 runs, 0 of them finished before")
    for seed, end in enumerate(("no memory", "exit code 0, but no summary")):
        started, ended = rest[2 * seed : 2 * seed + 2]
        assert started == f"quickstart seed {seed}: training, output in {runs[seed].log}"
        assert ended.startswith(f"quickstart seed {seed}: FAILED")
        assert ended.endswith(f"\n  {end}")


def test_a_second_ctrl_c_ends_what_does_not_listen(tmp_path: Path) -> None:
    # What Python does by itself, unless it was started in the background, where SIGINT is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run = scripted(tmp_path, DEAF)

    def interrupt_twice() -> None:
        while not run.log.exists() or "deaf" not in run.log.read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt_twice)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        runner.run_all([run], 1, tmp_path, shown := Shown())
    thread.join()
    assert shown.notes[-1].startswith("stopping: the runs finish their interval")
    with locked_folder(tmp_path, "busy"):  # so nothing lives that holds it
        pass


def test_the_bar_shows_the_steps_of_all_runs(tmp_path: Path, finish: Finish) -> None:
    finish(scripted(tmp_path, ""), [0.5] * 3)
    shown = Shown()
    runner.run_all([scripted(tmp_path, ""), scripted(tmp_path, "", seed=1)], 1, tmp_path, shown)
    assert shown.done == [300], "of the finished run, and none of the one that left nothing"


SHOW_GPUS = "import os; print('GPUs', os.environ.get('CUDA_VISIBLE_DEVICES'))"


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make a machine of so many GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return lambda count: monkeypatch.setattr(runner, "machine", lambda: Machine(gpus=count, cores=4))


def ranked(folder: Path, *overrides: str) -> Scripted:
    return Scripted(plan.Variant(base=configuration.QUICKSTART), 0, overrides, folder)


@pytest.mark.parametrize(
    ("jobs", "given", "expected"), [(1, None, "None"), (2, None, "2"), (2, "1", "1"), (8, "3", "1")]
)
def test_parallel_runs_share_the_cores(
    jobs: int, given: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    for module in ("cpu", "tools.experiments.runner"):
        monkeypatch.setattr(f"sacglam.{module}.cores", lambda: 4)
    run = scripted(tmp_path, "import os; print('threads', os.environ.get('OMP_NUM_THREADS'))", 0)
    runner.run_all([run], jobs, tmp_path, Shown())
    assert run.log.read_text().split()[-1] == expected


def test_each_parallel_run_has_gpus_of_its_own(tmp_path: Path, gpus: Callable[[int], None]) -> None:
    gpus(2)
    runs = [scripted(tmp_path, SHOW_GPUS, seed) for seed in range(3)]
    runner.run_all(runs, 2, tmp_path, Shown())
    first, second, third = (run.log.read_text().split()[-1] for run in runs)
    assert {first, second} == {"0", "1"}
    assert third in "01"  # that of a run which has ended


@pytest.mark.parametrize(
    ("count", "jobs", "overrides", "expected"),
    [
        (4, 2, ["learners.count=2"], ["0,1", "2,3"]),
        (4, 2, ["engines.count=1", "learners.count=1"], ["0,1", "2,3"]),
        (2, 3, [], ["0", "1", "0"]),
        (1, 2, [], ["0", "0"]),
        (2, 2, ["device=cpu"], [None, None]),
        (2, 2, ["device=cuda:1"], [None, None]),
        (2, 1, [], [None]),
        (0, 2, [], [None, None]),
    ],
)
def test_gpus_are_shared_only_by_runs_that_need_one(
    count: int, jobs: int, overrides: list[str], expected: list[str | None], tmp_path: Path, gpus: Callable[[int], None]
) -> None:
    gpus(count)
    shares = runner.gpu_shares([ranked(tmp_path, *overrides)], jobs)
    assert [share.get("CUDA_VISIBLE_DEVICES") for share in shares] == expected


def test_gpus_that_the_user_left_visible_are_shared_out(
    tmp_path: Path, gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,GPU-1a")
    assert [each["CUDA_VISIBLE_DEVICES"] for each in runner.gpu_shares([ranked(tmp_path)], 2)] == ["6", "GPU-1a"]


def test_more_parallel_runs_than_gpus_are_refused(tmp_path: Path, gpus: Callable[[int], None]) -> None:
    gpus(4)
    with pytest.raises(ConfigError, match=r"expected 6 GPUs for --jobs 2, since a run takes up to 3; .* use --jobs 1"):
        runner.gpu_shares([ranked(tmp_path, "engines.count=1", "learners.count=2")], 2)
    with pytest.raises(ConfigError, match=r"expected 5 GPUs for --jobs 5, since a run takes up to 1; .* use --jobs 4"):
        runner.gpu_shares([ranked(tmp_path, "learners.count=1")], 5)


def test_the_only_run_sees_all_gpus(tmp_path: Path, gpus: Callable[[int], None]) -> None:
    gpus(2)
    run = Scripted(plan.Variant(base=configuration.QUICKSTART), 0, ("learners.count=2",), tmp_path, SHOW_GPUS)
    runner.run_all([run], 2, tmp_path, Shown())
    assert run.log.read_text().split()[-1] == "None"  # CUDA_VISIBLE_DEVICES leaves out none
