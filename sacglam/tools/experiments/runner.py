"""Runs `sacglam train` in processes, a few at a time, and picks up where an earlier command left off."""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich import progress as rich_progress
from rich.console import Console

from sacglam import files, subprocesses
from sacglam.errors import write_explained
from sacglam.runs.directory import locked_folder
from sacglam.runs.stopping import Stopped, StopSignal
from sacglam.tools.experiments.plan import Run
from sacglam.tools.experiments.results import note_session, progress

_POLL_S = 1.0
_LOG_LINES = 12
_PACE_S = 1800.0  # seconds whose pace predicts the time left


def run_all(runs: Sequence[Run], jobs: int, root: Path, console: Console) -> bool:
    """Run what is not finished, `jobs` at a time in the given order; whether none failed, which stops no other.

    The first SIGINT or SIGTERM is passed on to the runs, which write a checkpoint, and no other is started. A second
    one ends them at once. Runs inherit the lock of the folder `root`. So a run that outlives a killed command keeps
    the folder locked, and no other process can start to write into the same run.

    Raises:
        RunDirectoryError: another process works in `root`.
        Stopped: by such a signal.
    """
    busy = f"another sacglam, or a run that it started, is at work in {root}; wait for it, or choose another --out"
    stopping, succeeded = False, True
    with locked_folder(root, busy) as lock, StopSignal() as stop:
        display = RunsDisplay(console, runs)
        waiting, active = [run for run in runs if not run.finished], dict[Run, subprocess.Popen[bytes]]()
        try:
            display.bars.start()
            while waiting or active:
                if stop.requested and not stopping:
                    stopping = True
                    waiting.clear()
                    display.note("stopping: the runs finish their interval and write a checkpoint")
                    for process in active.values():
                        process.send_signal(subprocesses.INTERRUPT)
                for run in waiting[: jobs - len(active)]:
                    waiting.remove(run)
                    active[run] = _start(run, lock)
                    display.started(run)
                time.sleep(_POLL_S)
                for run, process in list(active.items()):
                    if process.poll() is None:
                        display.update(run)
                        continue
                    del active[run]
                    note_session(run, jobs)
                    success = process.returncode == 0 and run.finished
                    succeeded &= success or stopping
                    display.ended(run, _outcome(run, success, stopping))
        finally:
            display.bars.stop()
            for process in active.values():
                process.kill()
                process.wait()
    if stopping:
        raise Stopped
    return succeeded


def _start(run: Run, lock: int) -> subprocess.Popen[bytes]:
    with write_explained(run.log):
        run.log.parent.mkdir(parents=True, exist_ok=True)
        with files.opened(run.log, "ab") as log:
            return subprocess.Popen(
                run.command(),
                env=subprocesses.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[] if sys.platform == "win32" else [lock],
                **subprocesses.APART,  # `run_all` passes on Ctrl-C once
            )


def _outcome(run: Run, success: bool, stopping: bool) -> str:
    """What became of a run, in a few words; of a failed one, the end of its log."""
    if success:
        summary = run.directory.summary() or {}
        return f"success {summary['success_after']['overall']:.3f} after {summary['train_seconds']:.0f} s of training"
    if stopping:
        return "stopped; the same command resumes it"
    end = [line for line in run.log.read_text("utf-8", "replace").splitlines() if line.strip()][-_LOG_LINES:]
    return "\n  ".join([f"FAILED. The end of {run.log}:", *end])


class RunsDisplay:
    """Shows runs: a line when each begins and ends, and in a terminal a bar for each and one for all."""

    def __init__(self, console: Console, runs: Sequence[Run]) -> None:
        self._console = console
        self.bars = rich_progress.Progress(
            rich_progress.SpinnerColumn(),
            rich_progress.TextColumn("{task.description}", markup=False),
            rich_progress.BarColumn(bar_width=24),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TextColumn("{task.fields[figures]}", markup=False),
            rich_progress.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            speed_estimate_period=_PACE_S,
        )
        self._steps = {run: run.config.steps if run.finished else progress(run)[0] for run in runs}
        self._ended = sum(run.finished for run in runs)
        self._tasks: dict[Run, rich_progress.TaskID] = {}
        self._all = self.bars.add_task("all runs", total=sum(run.config.steps for run in runs), figures="")
        self.note(f"{len(runs)} runs, {self._ended} of them finished before; Ctrl-C stops, the same command resumes")
        self._count()

    def started(self, run: Run) -> None:
        """Add a bar for the run."""
        self._tasks[run] = self.bars.add_task(run.title, total=run.config.steps, figures="")
        self.note(f"{run.title}: training, output in {run.log}")

    def update(self, run: Run) -> None:
        """Show how far the run is."""
        self._steps[run], success = progress(run)
        figures = "" if success is None else f"  success {success:.2f}"
        self.bars.update(self._tasks[run], completed=self._steps[run], figures=figures)
        self._count()

    def ended(self, run: Run, outcome: str) -> None:
        """A line in place of the run's bar."""
        self.bars.remove_task(self._tasks.pop(run))
        self._ended += 1
        self._steps[run] = run.config.steps
        self._count()
        self.note(f"{run.title}: {outcome}")

    def note(self, text: str) -> None:
        """Print a line above the bars."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _count(self) -> None:
        figures = f"{self._ended} of {len(self._steps)} runs"
        self.bars.update(self._all, completed=sum(self._steps.values()), figures=figures)
