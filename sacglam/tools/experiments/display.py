"""The progress of a set of runs: a bar for each that is under way, and one for all; in a file, a line now and then."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn

from sacglam.clock import duration
from sacglam.tools.experiments.plan import Run
from sacglam.tools.experiments.progress import Glimpse

_LINES_PER_RUN = 4


class RunsDisplay:
    """Shows a set of runs in a terminal, or in a file."""

    def __init__(self, console: Console) -> None:
        """Shows nothing until entered."""
        self._console = console
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[Run, TaskID] = {}
        self._lines: dict[Run, int] = {}
        self._all: TaskID | None = None

    def __enter__(self) -> RunsDisplay:
        self._bars.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.__exit__(kind, error, trace)

    def begin(self, total: int, done: int) -> None:
        """The bar of all runs."""
        self.note(f"{total} runs, {done} of them finished before; Ctrl-C stops, the same command goes on")
        self._all = self._bars.add_task("all runs", total=total, completed=done, figures="")

    def started(self, run: Run, stage: str) -> None:
        """A bar for the run."""
        self._drop(run)
        total = run.config.steps if stage == "training" else None
        self._tasks[run] = self._bars.add_task(run.title, total=total, figures=stage)
        if not self._console.is_terminal:
            self.note(f"{run.title}: {stage}")

    def progress(self, run: Run, now: Glimpse) -> None:
        """Steps, last success and time left of the run."""
        steps = run.config.steps
        left = now.seconds_left(steps)
        figures = "starting" if left is None else f"{duration(left)} left"
        if now.success is not None:
            figures = f"success {now.success:.2f}  {figures}"
        self._bars.update(self._tasks[run], completed=now.env_steps, figures=figures)
        line = _LINES_PER_RUN * now.env_steps // steps
        if not self._console.is_terminal and line > self._lines.get(run, 0):
            self._lines[run] = line
            self.note(f"{run.title}: {now.env_steps:,} of {steps:,} steps  {figures}")

    def finished(self, run: Run, outcome: str) -> None:
        """A line, in place of the run's bar."""
        self._drop(run)
        if self._all is not None:
            self._bars.advance(self._all)
        self.note(f"{run.title}: {outcome}")

    def left(self, seconds: float | None) -> None:
        """The time left of all runs."""
        if self._all is not None:
            self._bars.update(self._all, figures="" if seconds is None else f"about {duration(seconds)} left")

    def note(self, text: str) -> None:
        """Print a line above the bars."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _drop(self, run: Run) -> None:
        if run in self._tasks:
            self._bars.remove_task(self._tasks.pop(run))
