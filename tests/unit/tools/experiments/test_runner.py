"""The runner's hold on its folder and its processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from sacglam import config as configuration
from sacglam.errors import RunDirectoryError
from sacglam.tools.experiments import plan
from sacglam.tools.experiments.progress import Glimpse, glimpse
from sacglam.tools.experiments.runner import Runner, sole_user
from tests.unit.tools.experiments.made_up import finish

DEAF = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"


class Noted:
    """Keeps what a watcher is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def begin(self, total: int, done: int) -> None:
        self.told.append(f"{done} of {total}")

    def started(self, run: plan.Run, stage: str) -> None:
        self.told.append(f"{run.title}: {stage}")

    def progress(self, run: plan.Run, now: Glimpse) -> None:
        pass

    def finished(self, run: plan.Run, outcome: str) -> None:
        self.told.append(f"{run.title}: {outcome}")

    def left(self, seconds: float | None) -> None:
        pass

    def note(self, text: str) -> None:
        self.told.append(text)


@dataclass(frozen=True)
class Scripted(plan.Run):
    """A run whose training is a Python program of the test's own."""

    program: str = ""

    def train_command(self) -> list[str]:
        return [sys.executable, "-c", self.program]


def scripted(folder: Path, program: str, seed: int = 0) -> Scripted:
    variant = plan.Variant("quickstart", configuration.quickstart_path())
    return Scripted(variant, seed, (), folder, program)


def test_a_process_that_outlives_its_caller_keeps_the_folder(tmp_path: Path) -> None:
    with sole_user(tmp_path) as lock:
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=[lock])
    try:
        with pytest.raises(RunDirectoryError, match="is at work in"), sole_user(tmp_path):
            pass
    finally:
        left.kill()
        left.wait()
    with sole_user(tmp_path):
        pass


def test_failures_are_told_with_their_last_words_and_the_next_run_begins(tmp_path: Path) -> None:
    runs = [
        scripted(tmp_path, "print('one'); raise SystemExit('no memory')"),
        scripted(tmp_path, "print('came to no end')", seed=1),
    ]
    watcher = Noted()
    with sole_user(tmp_path) as lock:
        outcome = Runner(1, {}, watcher).run(runs, lock)
    assert [failure.run.seed for failure in outcome.failures] == [0, 1]
    assert outcome.failures[0].last_lines[-1] == "no memory"
    assert outcome.failures[1].last_lines == ("came to no end",)  # exit code 0, but no summary
    assert not outcome.stopped
    assert watcher.told[0] == "0 of 2"


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
    watcher = Noted()
    thread.start()
    with sole_user(tmp_path) as lock, pytest.raises(KeyboardInterrupt):
        Runner(1, {}, watcher).run([run], lock)
    thread.join()
    assert any(told.startswith("stopping") for told in watcher.told)
    with sole_user(tmp_path):  # so nothing lives that holds it
        pass


def test_a_glimpse_tells_pace_and_last_success(tmp_path: Path) -> None:
    run = scripted(tmp_path, "")
    assert glimpse(run) == Glimpse()
    assert glimpse(run).seconds_left(400) is None
    finish(run, [0.5, 0.75], seconds=2.0)
    assert glimpse(run) == Glimpse(200, 400.0, 0.75)
    assert glimpse(run).seconds_left(300) == 200
