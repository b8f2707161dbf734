"""Runs trainings in processes of their own, a few at a time, and picks up where an earlier call left off."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sacglam.errors import RunDirectoryError
from sacglam.runs.directory import explained
from sacglam.runs.stopping import StopSignal
from sacglam.tools.experiments.plan import Run
from sacglam.tools.experiments.progress import Watcher, glimpse
from sacglam.tools.experiments.state import State, add_session, heldout_file, needs_heldout, state

_TRAINING, _HELDOUT = "training", "held-out goals"
_POLL_S = 0.25
_LOOK_EVERY_S = 1.0
_LOG_LINES = 12


@dataclass(frozen=True)
class Failure:
    """A run that did not come to its end, and the last lines that it printed."""

    run: Run
    stage: str
    last_lines: tuple[str, ...]
    log: Path


@dataclass
class Outcome:
    """What became of a set of runs."""

    stopped: bool = False
    failures: list[Failure] = field(default_factory=list)


@contextmanager
def sole_user(root: Path) -> Iterator[int]:
    """Hold the lock of an experiment's folder, and give its descriptor.

    Trainings inherit the descriptor. So a training that outlives a killed caller keeps the folder locked, and no other
    process can start to write into the same run.

    Raises:
        RunDirectoryError: another process works there.
    """
    file = root / ".lock"
    with explained(file):
        root.mkdir(parents=True, exist_ok=True)
        opened = file.open("a")
    with opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunDirectoryError(
                f"another sacglam, or a training that it started, is at work in {root}; "
                "wait for it, or choose another --out"
            ) from None
        yield opened.fileno()


class Runner:
    """Works through runs, `jobs` at a time, in the order given."""

    def __init__(self, jobs: int, session: Mapping[str, Any], watcher: Watcher) -> None:
        """`session` is noted beside each run; nothing is started yet."""
        self._jobs = jobs
        self._session = session
        self._watcher = watcher

    def run(self, runs: Sequence[Run], lock: int) -> Outcome:
        """Train what is not finished and measure what was not measured; failures do not stop the others.

        The first SIGINT or SIGTERM is passed on to the trainings, which write a checkpoint, and no other is started.
        A second one ends them at once. `lock` is the descriptor that the processes inherit.
        """
        unfinished = [run for run in runs if state(run) is not State.FINISHED or needs_heldout(run)]
        self._watcher.begin(len(runs), len(runs) - len(unfinished))
        waiting, active, outcome = deque(unfinished), list[_Job](), Outcome()
        with StopSignal() as stop:
            try:
                while waiting or active:
                    if stop.requested and not outcome.stopped:
                        outcome.stopped = True
                        waiting.clear()
                        self._interrupt(active)
                    while waiting and len(active) < self._jobs:
                        active.append(_Job(waiting.popleft(), lock, self._session, self._watcher))
                    time.sleep(_POLL_S)
                    active = [job for job in active if not job.step(outcome)]
                    self._watcher.left(_seconds_left(active, len(waiting), self._jobs))
            finally:
                for job in active:
                    job.kill()
        return outcome

    def _interrupt(self, active: Sequence[_Job]) -> None:
        if active:
            self._watcher.note("stopping: the trainings finish their interval and write a checkpoint")
        for job in active:
            job.interrupt()


class _Job:
    """A run under way: its training, and then its evaluation on held-out goals."""

    def __init__(self, run: Run, lock: int, session: Mapping[str, Any], watcher: Watcher) -> None:
        self.run = run
        self._lock, self._session, self._watcher = lock, session, watcher
        self._steps = run.config.steps
        self._looked_at = 0.0
        self.seconds_left: float | None = None
        self.seconds_whole: float | None = None
        self._begin_stage(_HELDOUT if state(run) is State.FINISHED else _TRAINING)

    def _begin_stage(self, stage: str) -> None:
        run, self._stage, self._begun = self.run, stage, time.monotonic()
        if stage == _TRAINING:
            command = run.train_command() if state(run) is State.NEW else run.resume_command()
            self._process = self._spawn(command, None)
        else:
            self.seconds_left = 0.0
            self._process = self._spawn(run.heldout_command(), _unfinished(heldout_file(run)))
        self._watcher.started(run, stage)

    def _spawn(self, command: Sequence[str], output: Path | None) -> subprocess.Popen[bytes]:
        """Start a process out of reach of the terminal's Ctrl-C, which is passed on once, by the runner."""
        with explained(self.run.log):
            self.run.log.parent.mkdir(parents=True, exist_ok=True)
            with self.run.log.open("ab") as log, (output or self.run.log).open("ab" if output is None else "wb") as out:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=[self._lock],
                )

    def step(self, outcome: Outcome) -> bool:
        """Look at the process; whether the run is over."""
        code = self._process.poll()
        if code is None:
            self._look()
            return False
        if self._stage == _TRAINING:
            seconds = round(time.monotonic() - self._begun, 1)
            add_session(self.run, {**self._session, "seconds": seconds})
        if self._succeeded(code):
            if self._stage == _TRAINING and not outcome.stopped and needs_heldout(self.run):
                self._begin_stage(_HELDOUT)
                return False
            self._watcher.finished(self.run, _result(self.run))
        elif outcome.stopped:
            self._watcher.finished(self.run, "stopped; the same command goes on with it")
        else:
            outcome.failures.append(Failure(self.run, self._stage, _tail(self.run.log), self.run.log))
            self._watcher.finished(self.run, f"FAILED ({self._stage}); see {self.run.log}")
        return True

    def _succeeded(self, code: int) -> bool:
        if self._stage == _TRAINING:
            return code == 0 and state(self.run) is State.FINISHED
        writing = _unfinished(heldout_file(self.run))
        try:
            json.loads(writing.read_text())
        except (OSError, ValueError):
            return False
        if code == 0:
            writing.replace(heldout_file(self.run))
        return code == 0

    def _look(self) -> None:
        now = time.monotonic()
        if self._stage != _TRAINING or now - self._looked_at < _LOOK_EVERY_S:
            return
        self._looked_at = now
        found = glimpse(self.run)
        self.seconds_left = found.seconds_left(self._steps)
        self.seconds_whole = None if self.seconds_left is None else found.seconds + self.seconds_left
        self._watcher.progress(self.run, found)

    def interrupt(self) -> None:
        """Ask a training to end with a checkpoint; an evaluation is made anew next time."""
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End the process at once, if it still runs."""
        self._process.kill()
        self._process.wait()


def _unfinished(file: Path) -> Path:
    return file.with_suffix(".writing")


def _seconds_left(active: Sequence[_Job], waiting: int, jobs: int) -> float | None:
    """From the pace of what runs now: what is left of it, and as long for each that waits."""
    left = [job.seconds_left for job in active if job.seconds_left is not None]
    whole = [job.seconds_whole for job in active if job.seconds_whole is not None]
    if not left or (waiting and not whole):
        return None
    return max(left) + (waiting * sum(whole) / len(whole) / jobs if waiting else 0.0)


def _result(run: Run) -> str:
    summary = json.loads((run.folder / "summary.json").read_text())
    return f"success {summary['success_after']['overall']:.3f} after {summary['train_seconds']:.0f} s of training"


def _tail(log: Path) -> tuple[str, ...]:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(line for line in lines if line.strip())[-_LOG_LINES:]
