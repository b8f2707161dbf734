"""The diagnosis: all findings and a verdict on each kind of training, as text and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

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
    """Whether a kind of training works here; if not, the first reason and its fix."""

    way: Way
    title: str
    works: bool
    reason: str | None = None
    fix: str | None = None


@dataclass(frozen=True)
class Diagnosis:
    """All findings, and whether each kind of training works."""

    findings: tuple[Finding, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def trains(self) -> bool:
        """Whether training in one process works."""
        return next(verdict.works for verdict in self.verdicts if verdict.way == "one")

    def to_json(self) -> dict[str, Any]:
        """Findings and verdicts as plain values."""
        findings = [{**asdict(finding), "blocks": sorted(finding.blocks)} for finding in self.findings]
        return {"findings": findings, "verdicts": [asdict(verdict) for verdict in self.verdicts]}


def diagnose(facts: Facts) -> Diagnosis:
    """Run all checks on the facts about a machine."""
    findings = tuple(finding for check in checks.CHECKS for finding in check(facts))
    gpus = len(facts.gpus) if len(facts.gpus) >= checks.FEWEST_GPUS else "several"
    titles: dict[Way, str] = {
        "one": "one process",
        "cpu": "engines + learners on CPU",
        "gpu": f"engines + learners on {gpus} GPUs",
    }
    return Diagnosis(findings, tuple(_verdict(way, title, findings) for way, title in titles.items()))


def _verdict(way: Way, title: str, findings: Sequence[Finding]) -> Verdict:
    first = next((finding for finding in findings if way in finding.blocks), None)
    if first is None:
        return Verdict(way, title, True)
    return Verdict(way, title, False, f"{first.name}: {first.came}", first.fix)


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
