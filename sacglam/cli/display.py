"""Terminal output: progress, plain messages and the summary of a run."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import typer
from rich import progress as rich_progress
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typing_extensions import override

from sacglam.runs.display import Display
from sacglam.runs.progress import Progress

console = Console(emoji=False)
errors = Console(stderr=True, emoji=False)

TrustOption = Annotated[
    bool, typer.Option("--trust", help="Import the code that the folder names. Use it only for folders you trust.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON only.")]

_LINES = 10  # per stage, when the output is a file
_FIGURES = (
    ("success", "success", ".2f"),
    ("episode_return", "return", ".2f"),
    ("entropy", "entropy", ".2f"),
    ("alpha", "alpha", ".4f"),
    ("q", "Q", ".2f"),
)


def print_plain(console: Console, text: str) -> None:
    """Print text verbatim: no markup, colours or wrapping."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def settings_of(overrides: list[str] | None, *sections: str) -> list[str]:
    """The overrides of an option --set that may only name settings of these sections."""
    for key in (each.partition("=")[0] for each in overrides or []):
        if key.partition(".")[0] not in sections:
            raise typer.BadParameter(f"expected settings of {' or '.join(sections)} in --set, got {key}")
    return overrides or []


class RichDisplay(Display):
    """A progress bar in a terminal; an occasional line in a file."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = rich_progress.Progress(
            rich_progress.SpinnerColumn(),
            rich_progress.TextColumn("{task.description}", markup=False),
            rich_progress.BarColumn(bar_width=24),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TextColumn("{task.fields[figures]}"),
            rich_progress.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._total = self._next_line = 0
        self._first: tuple[int, float] | None = None
        self._figures, self._rate = "", 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        self._console.show_cursor()  # a process that Ctrl-C kills could not show it again
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    @override
    def stage(self, name: str, total: int) -> None:
        if self._bar.task_ids:
            self._bar.stop_task(self._bar.task_ids[-1])
        self._bar.add_task(name, total=total, figures="")
        self._total, self._next_line = total, max(1, total // _LINES)
        self._figures, self._rate = "", 0.0
        self._line(f"{name} ...")

    @override
    def advance(self, done: int) -> None:
        self._update(completed=min(done, self._total))
        if done >= self._next_line:
            self._next_line = done + max(1, self._total // _LINES)
            left = f"  {max(0, self._total - done) / self._rate:.0f} s left" if self._rate else ""
            self._line(f"{done:>8,} of {self._total:,}  {self._figures}{left}".rstrip())

    @override
    def metrics(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        if self._first is None:
            self._first = (progress.env_steps, progress.seconds)
            return
        steps, elapsed = progress.env_steps - self._first[0], progress.seconds - self._first[1]
        self._rate = steps / elapsed if elapsed else 0.0
        parts = [f"{label} {metrics[name]:{form}}" for name, label, form in _FIGURES if name in metrics]
        self._figures = "  ".join([*parts, f"{self._rate:.0f} steps/s"])
        self._update(figures=self._figures)

    def _update(self, **fields: Any) -> None:
        if self._bar.task_ids:
            self._bar.update(self._bar.task_ids[-1], **fields)

    def _line(self, text: str) -> None:
        if not self._console.is_terminal:
            print_plain(self._console, text)

    @override
    def note(self, text: str) -> None:
        print_plain(self._console, text)


def print_summary(console: Console, folder: Path, summary: Mapping[str, Any], trust: bool = False) -> None:
    """Print success before and after, where the results are and what to run next (with `--trust` if needed)."""
    quoted = escape(shlex.quote(str(folder)))
    run = f"{quoted} --trust" if trust else quoted
    if not summary["finished"]:
        steps = summary["env_steps"]
        where = f"at {steps:,} steps with a checkpoint" if steps else "before the first step"
        console.print(f"stopped {where}; resume: [bold]sacglam train --resume {run}", soft_wrap=True)
        return
    columns = {"random": "random policy", "before": "before (greedy)"}
    columns |= {"after": "after (greedy)", "sampled": "after (sampled)"}
    if summary["success_heldout"]:
        columns["heldout"] = "held-out goals (greedy)"
    table = Table("success", *columns.values())
    for name in summary["success_after"]:
        rates = [summary[f"success_{when}"].get(name) for when in columns]
        table.add_row(escape(name), *("" if rate is None else f"{rate:.3f}" for rate in rates))
    if "return_after" in summary:
        returns = [[summary.get(f"return{kind}_{when}") for kind in ("", "_error")] for when in columns]
        shown = ("" if a is None else f"{a:,.3f}" + ("" if b is None else f" ± {b:,.3f}") for a, b in returns)
        table.add_row("[bold]return ± std. error", *shown)
    console.print(table)
    if summary["updates"] == 0:
        console.print("[bold yellow]No update was made, so this is the untrained model", soft_wrap=True)
    for warning in summary["warnings"]:
        console.print(f"[bold yellow]Warning:[/] {escape(warning)}", soft_wrap=True)
    best = summary.get("best")
    kept = f"; best/ from step {best['env_steps']:,}, to use with --best" if best else ""
    console.print(
        f"{summary['env_steps']:,} steps and {summary['updates']:,} updates "
        f"in {summary['train_seconds']:.0f} s of training. "
        f"Results: {quoted} (summary.json, curves.png, metrics.jsonl, adapter/{kept})\n"
        f"Next:  [bold]sacglam play {run}[/bold]   [bold]sacglam evaluate {run}[/bold]",
        soft_wrap=True,
    )
