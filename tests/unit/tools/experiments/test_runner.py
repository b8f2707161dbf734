"""The runner's hold on its folder and its processes."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from sacglam import config as configuration
from sacglam.errors import RunDirectoryError
from sacglam.runs.directory import locked_folder
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
        with pytest.raises(RunDirectoryError, match="is at work in"):
            runner.run_all([], 1, tmp_path, console())
    finally:
        left.kill()
        left.wait()
    assert runner.run_all([], 1, tmp_path, console())


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def output(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


def test_failures_end_with_the_log_and_the_next_run_begins(tmp_path: Path) -> None:
    runs = [
        scripted(tmp_path, "print('one'); raise SystemExit('no memory')"),
        scripted(tmp_path, "print('exit code 0, but no summary')", seed=1),
    ]
    shown = console()
    assert not runner.run_all(runs, 1, tmp_path, shown)
    said = output(shown)
    assert said.startswith("2 runs, 0 of them finished before")
    assert "quickstart seed 0: FAILED" in said
    assert "  no memory\n" in said
    assert "quickstart seed 1: FAILED" in said
    assert "  exit code 0, but no summary\n" in said


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
        runner.run_all([run], 1, tmp_path, shown := console())
    thread.join()
    assert "stopping: the runs finish their interval" in output(shown)
    with locked_folder(tmp_path, "busy"):  # so nothing lives that holds it
        pass


def test_a_run_shows_its_steps_and_last_success(tmp_path: Path, finish: Finish) -> None:
    run = scripted(tmp_path, "")
    display = runner.RunsDisplay(shown := console(), [run])
    display.started(run)
    finish(run, [0.5] * 15 + [0.75])
    display.update(run)
    assert output(shown).splitlines()[1:] == [f"quickstart seed 0: training, output in {run.log}"]
    _, bar = display.bars.tasks
    assert (bar.completed, bar.fields["figures"]) == (1600, "  success 0.75")
