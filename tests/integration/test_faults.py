"""Faults at random moments: a run that is killed resumes exactly, and Ctrl-C while it starts ends it cleanly.

A few faults by default. SACGLAM_FAULTS sets their number in each test, and SACGLAM_FAULTS_SEED repeats a series, whose
seed and moments are printed (`pytest -s`).
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import sacglam, tiny_train
from tests.integration.processes import left_after, marked
from tests.integration.test_resume import assert_same_end
from tests.launcher import Launched, start
from tests.often import often
from tests.with_stand_in import stood_in

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("SACGLAM_FAULTS_SEED", random.SystemRandom().randrange(10**6)))
STAGES = ("training", "a checkpoint", "the last evaluation", "start-up")
KILLS_PER_RUN = 5
LINES, LINE_STEPS = 20, 32
PATIENCE_S = 600  # a run that starts on a busy machine
RANKS = [
    "engines.count=1",
    "learners.count=2",
    "device=cpu",
    "goals=magellan",
    "partner={type: judge, budget: 170, threshold: 0.2}",
]

KINDS = [
    pytest.param([], id="one-process"),
    pytest.param(
        RANKS,
        id="ranks-and-engine",
        marks=[
            pytest.mark.nightly,
            pytest.mark.skipif(
                not (find_spec("ray") and find_spec("deepspeed")), reason="Ray or DeepSpeed is not installed"
            ),
        ],
    ),
]
Process = Launched | subprocess.Popen[bytes]


@dataclass
class Faulty:
    """A tiny run in `folder`, whose process is started again after each fault."""

    folder: Path
    overrides: list[str]
    temporary: Path
    resumed: set[int] = field(default_factory=set)
    """The steps of the first line of metrics after each resume."""

    @contextmanager
    def started(self, fresh: bool = False) -> Iterator[Process]:
        """Begin the run or resume it. Once its process has ended, all others have within a minute."""
        command = (
            sacglam("train", resume=str(self.folder)) if self.claimed else tiny_train(self.folder, *self.overrides)
        )
        if self.overrides:
            command = stood_in(command)
        elif fresh:
            command = often(command)
        mark = uuid.uuid4().hex
        # Ray's own folder stays where it is, since the paths of its sockets must be short.
        env = {**os.environ, "SACGLAM_MARK": mark, "TMPDIR": str(self.temporary), "RAY_TMPDIR": "/tmp"}
        with self.log.open("wb") as out:
            process: Process = (
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True
                )
                if fresh
                else start(command, out, subprocess.STDOUT, env=env, start_new_session=True)
            )
        try:
            yield process
            assert left_after(marked(mark), 60) == []
            assert marked(mark) == []
            assert list(self.temporary.glob("sacglam-*")) == []
        finally:
            process.kill()
            process.wait()
        self.resumed |= {int(step) + LINE_STEPS for step in re.findall(r"resuming from \S*step-(\d+)", self.said())}

    @property
    def claimed(self) -> bool:
        """Whether there is something to resume."""
        return (self.folder / "config.yaml").exists() and (self.folder / "config.yaml").stat().st_size > 0

    @property
    def log(self) -> Path:
        return self.temporary / "log.txt"

    def said(self) -> str:
        """What its process printed, without line breaks."""
        return self.log.read_text().replace("\n", " ")

    def lines(self) -> int:
        """Lines of metrics."""
        file = self.folder / "metrics.jsonl"
        return file.read_text().count("\n") if file.exists() else 0

    def is_saving(self, since: float) -> bool:
        """Whether a checkpoint is being written; an earlier kill may have left another unfinished."""
        with suppress(FileNotFoundError):  # it has just been finished
            return any(f.stat().st_mtime > since for f in (self.folder / "checkpoints").glob(".writing*"))
        return False

    def finish(self) -> None:
        with self.started() as process:
            assert process.wait(PATIENCE_S) == 0, self.said()

    def wait(self, process: Process, stage: str, start_s: float, rng: random.Random) -> bool:
        """Until a random moment of a stage; false if the process ends before."""
        first = self.lines()
        target = first + rng.randint(1, 4)
        began = time.time()
        wanted: dict[str, tuple[Callable[[], bool], float]] = {
            "start-up": (lambda: True, start_s),
            "training": (lambda: self.lines() >= min(target, LINES), 0.3),
            "a checkpoint": (lambda: self.is_saving(began), 0.03),
            "the last evaluation": (lambda: "evaluating after" in self.said(), 0.3),
        }
        condition, spread_s = wanted[stage]
        return wait_for(process, condition) and not ended_within(process, rng.uniform(0, spread_s))


def wait_for(process: Process, condition: Callable[[], bool]) -> bool:
    """Until the condition holds; false if the process ends before."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S} s"
        if process.poll() is not None:
            return False
        time.sleep(0.001)
    return True


def ended_within(process: Process, seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


@dataclass
class Reference:
    """An undisturbed run, and how long it took to its first line of metrics."""

    folder: Path
    overrides: list[str]
    start_s: float


@pytest.fixture(scope="module", params=KINDS)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    run = Faulty(tmp_path_factory.mktemp("calm") / "run", request.param, tmp_path_factory.mktemp("temporary"))
    began = time.monotonic()
    with run.started(fresh=True) as process:
        assert wait_for(process, lambda: run.lines() > 0), run.said()
        start_s = time.monotonic() - began
        assert process.wait(PATIENCE_S) == 0, run.said()
    return Reference(run.folder, run.overrides, start_s)


@pytest.mark.nightly
def test_a_run_that_is_killed_again_and_again_ends_as_if_nothing_had_happened(
    reference: Reference, tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    kills, wanted = 0, int(os.environ.get("SACGLAM_FAULTS", 2))
    for series in range(2 * wanted):
        if kills >= wanted:
            break
        folder = tmp_path / str(series)
        folder.mkdir()
        run = Faulty(folder / "run", reference.overrides, folder)
        count = min(KILLS_PER_RUN, wanted - kills)
        # A fault of each stage in turn, in the order of a run; it may be killed while it starts at any time.
        stages = sorted((STAGES[(kills + i) % len(STAGES)] for i in range(count)), key=STAGES.index)
        rng.shuffle(starts := [stage == "start-up" for stage in stages])
        others = iter(stage for stage in stages if stage != "start-up")
        for starting in starts:
            stage = "start-up" if starting else next(others)
            with run.started(fresh=starting) as process:
                in_time = run.wait(process, stage, reference.start_s, rng)
                process.kill()
                process.wait()
                kills += in_time
                print(f"seed {SEED}: kill {kills} of {wanted}: {stage}, {run.lines()} lines, in time: {in_time}")
                assert in_time or process.returncode == 0, run.said()
        run.finish()
        assert_same_end(run.folder, reference.folder, run.resumed)
    assert kills >= wanted


def test_ctrl_c_at_any_moment_of_start_up_ends_a_run_cleanly(reference: Reference, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    wanted = int(os.environ.get("SACGLAM_FAULTS", 2))
    run = Faulty(tmp_path / "run", reference.overrides, tmp_path)
    for fault in range(wanted):
        with run.started(fresh=True) as process:
            # Before that it is Python itself that starts.
            wait_for(process, lambda pid=process.pid: "pydantic_core" in Path(f"/proc/{pid}/maps").read_text())
            # It may start faster than the reference did: a run must not end before its fault.
            delay_s, began, lines = rng.uniform(0, reference.start_s), time.monotonic(), run.lines()
            in_time = wait_for(
                process, lambda end=began + delay_s, lines=lines: time.monotonic() > end or run.lines() > lines
            )
            assert in_time, run.said()
            if fault % 2:
                process.send_signal(signal.SIGINT)
            else:
                os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C in a terminal does
            code = process.wait(PATIENCE_S)
            said = run.said()
            print(f"seed {SEED}: Ctrl-C {fault + 1} of {wanted} after {delay_s:.1f} s: exit code {code}: {said[-150:]}")
            assert "Traceback" not in said
            assert code == -signal.SIGINT or (code == 0 and "stopped" in said and run.claimed), said
    run.finish()
    assert_same_end(run.folder, reference.folder, run.resumed)
