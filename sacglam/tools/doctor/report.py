"""The diagnosis: all findings and a verdict on each kind of training, as text and as JSON."""

from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sacglam.tools.doctor import checks
from sacglam.tools.doctor.facts import Facts, Finding, Way

_MARKS = {
    "ok": "[green]ok[/green]",
    "note": "[dim]-[/dim]",
    "warning": "[yellow]warn[/yellow]",
    "fault": "[red]fault[/red]",
}


@dataclass(frozen=True)
class Verdict:
    """Whether a kind of training works here; if not, the first reason why and its fix."""

    way: Way
    title: str
    works: bool
    reason: str | None = None
    fix: str | None = None


@dataclass(frozen=True)
class Diagnosis:
    """All findings, and a verdict on each kind of training."""

    findings: tuple[Finding, ...]
    verdicts: tuple[Verdict, ...]


def diagnose(facts: Facts) -> Diagnosis:
    """Run all checks on the facts about a machine."""
    findings = tuple(finding for check in checks.CHECKS for finding in check(facts))
    gpus = len(facts.gpus) if len(facts.gpus) >= checks.FEWEST_GPUS else "several"
    titles: dict[Way, str] = {
        "one": "one process",
        "cpu": "engines + learners on CPU",
        "gpu": f"engines + learners on {gpus} GPUs",
    }
    verdicts = []
    for way, title in titles.items():
        first = next((finding for finding in findings if way in finding.blocks), None)
        blocked = (False, f"{first.name}: {first.came}", first.fix) if first else (True,)
        verdicts.append(Verdict(way, title, *blocked))
    return Diagnosis(findings, tuple(verdicts))


def print_report(console: Console, diagnosis: Diagnosis) -> None:
    """Print the findings, their fixes (never wrapped), and the verdicts with a fix for each failure."""
    table = Table("", "what", "found")
    for finding in diagnosis.findings:
        table.add_row(_MARKS[finding.level], escape(finding.name), escape(finding.came))
    console.print(table)
    for finding in diagnosis.findings:
        if finding.fix and finding.level in ("warning", "fault"):
            _print_whole(console, f"fix {finding.name}:  {finding.fix}")
    for verdict in diagnosis.verdicts:
        console.print(f"{'[green]yes[/green]' if verdict.works else '[red]no [/red]'}  [bold]{verdict.title}[/bold]")
        if not verdict.works:
            _print_whole(console, f"     {verdict.reason}")
            _print_whole(console, f"     fix: {verdict.fix}")


def _print_whole(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
