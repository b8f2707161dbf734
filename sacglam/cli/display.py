"""What the command line shows: progress, the end of a training, an episode as it is played."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from sacglam.build import build_env
from sacglam.rollout import RandomStarts
from sacglam.runs.progress import Progress as TrainingProgress

if TYPE_CHECKING:
    from sacglam.agent import Agent

# Where the output is a file, a stage is shown by so many lines.
_LINES_WITH_FIGURES, _LINES_WITHOUT_FIGURES = 20, 4


class RichDisplay:
    """A progress line in a terminal; in a file, a line now and then."""

    def __init__(self, console: Console) -> None:
        """Shows nothing until entered."""
        self._console = console
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._total = 0
        self._first: tuple[int, float] | None = None
        self._next_line = 0
        self._figures = False

    def __enter__(self) -> RichDisplay:
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def stage(self, name: str, total: int) -> None:
        """A new line for a new stage."""
        if self._task is not None:
            self._bar.stop_task(self._task)
        self._task = self._bar.add_task(name, total=total, figures="")
        self._total = total
        self._figures = False
        self._next_line = max(1, total // _LINES_WITHOUT_FIGURES)
        if not self._console.is_terminal:
            self._console.print(f"{name} ...")

    def advance(self, done: int) -> None:
        """Move the bar."""
        if self._task is not None:
            self._bar.update(self._task, completed=min(done, self._total))
        if not self._console.is_terminal and not self._figures and done >= self._next_line:
            self._next_line += max(1, self._total // _LINES_WITHOUT_FIGURES)
            self._console.print(f"{done:>8,} of {self._total:,}")

    def metrics(self, progress: TrainingProgress, metrics: Mapping[str, float]) -> None:
        """Show the figures that matter beside the bar."""
        if self._first is None:
            self._first = (progress.env_steps, progress.seconds)
            return
        elapsed = progress.seconds - self._first[1]
        rate = (progress.env_steps - self._first[0]) / elapsed if elapsed else 0.0
        shown = [f"{label} {metrics[name]:{form}}" for name, label, form in _FIGURES if name in metrics]
        figures = "  ".join([*shown, f"{rate:.0f} steps/s"])
        if self._task is not None:
            self._bar.update(self._task, figures=figures)
        self._figures = True
        if not self._console.is_terminal and progress.env_steps >= self._next_line:
            self._next_line = progress.env_steps + self._total // _LINES_WITH_FIGURES
            left = (self._total - progress.env_steps) / rate if rate else float("nan")
            self._console.print(f"{progress.env_steps:>8,} steps  {figures}  {left:.0f} s left", soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


_FIGURES = (
    ("success", "success", ".2f"),
    ("entropy", "entropy", ".2f"),
    ("alpha", "alpha", ".4f"),
    ("q", "Q", ".2f"),
)


def print_summary(console: Console, folder: Path, summary: Mapping[str, Any]) -> None:
    """Where the results are and what to run next."""
    if not summary["finished"]:
        console.print(
            f"stopped at {summary['env_steps']:,} steps with a checkpoint; "
            f"go on: [bold]sacglam train --resume {folder}",
            soft_wrap=True,
        )
        return
    columns = {"random": "random policy", "before": "before (greedy)", "after": "after (greedy)"}
    if summary["success_heldout"]:
        columns["heldout"] = "held-out goals (greedy)"
    table = Table("success", *columns.values())
    for name in summary["success_after"]:
        rates = [summary[f"success_{when}"].get(name) for when in columns]
        table.add_row(name, *("" if rate is None else f"{rate:.3f}" for rate in rates))
    console.print(table)
    console.print(
        f"{summary['env_steps']:,} steps and {summary['updates']:,} updates "
        f"in {summary['train_seconds']:.0f} s of training. "
        f"Results: {folder} (summary.json, curves.png, metrics.jsonl, adapter/)\n"
        f"Next:  [bold]sacglam play {folder}[/bold]   [bold]sacglam evaluate {folder}[/bold]",
        soft_wrap=True,
    )


def play_episode(console: Console, agent: Agent, goal: str | None, seed: int, rng: np.random.Generator | None) -> None:
    """Play one episode and show every decision."""
    env = build_env(agent.config)
    if goal is None:
        goal = next(RandomStarts(env.goals("train"), np.random.default_rng(seed))).goal
    observation = env.reset(goal, seed)
    console.print(f"[bold]Goal: {escape(goal)}")
    for t in range(1, 1_000_000):
        probabilities = agent.probabilities(observation.text, goal, observation.actions)
        values = agent.q_values(observation.text, goal, observation.actions) if agent.has_q else None
        chosen = agent.act(observation.text, goal, observation.actions, rng)
        title = f"step {t}, V {agent.value(observation.text, goal, observation.actions):+.3f}"
        table = Table("action", "probability", *(["Q"] if values else []), title=title, title_justify="left")
        for action in observation.actions:
            style = "bold green" if action == chosen else ""
            cells = [f"{probabilities[action]:.3f}", *([f"{values[action]:+.3f}"] if values else [])]
            table.add_row(escape(action), *cells, style=style)
        console.print(escape(observation.text))
        console.print(table)
        step = env.step(observation.actions.index(chosen))
        if step.achieved:
            console.print(f"achieved: {escape(', '.join(step.achieved[:6]))}{' ...' if len(step.achieved) > 6 else ''}")
        if step.terminated or step.truncated:
            console.print("[bold green]success" if goal in step.achieved else "[bold red]no success")
            return
        observation = step.observation
