"""The diagnosis: all findings and the three verdicts, for people and for tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sacglam.tools.doctor import machine, packages
from sacglam.tools.doctor.collect import collect
from sacglam.tools.doctor.facts import Facts
from sacglam.tools.doctor.findings import Finding, Verdict, verdict

# In the order of mending: what comes first is the cause of what comes later.
_CHECKS = (
    packages.python,
    machine.platform,
    machine.gpus,
    packages.companions,
    packages.core,
    machine.gpu_use,
    packages.conflicts,
    packages.vllm,
    packages.learners,
    packages.optional,
    machine.resources,
)
_MARKS = {
    "ok": "[green]ok[/green]",
    "note": "[dim]-[/dim]",
    "warning": "[yellow]warn[/yellow]",
    "fault": "[red]fault[/red]",
}


@dataclass(frozen=True)
class Diagnosis:
    """What was found, and whether each way of training works."""

    findings: tuple[Finding, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def trains(self) -> bool:
        """Whether a training in one process works."""
        return next(verdict.works for verdict in self.verdicts if verdict.way == "one")


def diagnose(facts: Facts) -> Diagnosis:
    """Judge a machine."""
    findings = tuple(finding for check in _CHECKS for finding in check(facts))
    gpus = len(facts.gpus)
    on_gpus = f"engines + learners on {gpus if gpus >= machine.FEWEST_GPUS else 'several'} GPUs"
    titles = {"one": "one process", "cpu": "engines + learners on CPU", "gpu": on_gpus}
    return Diagnosis(
        findings,
        (
            verdict("one", titles["one"], findings),
            verdict("cpu", titles["cpu"], findings),
            verdict("gpu", titles["gpu"], findings),
        ),
    )


def examine(quick: bool, started: Callable[[str], None] = lambda _: None) -> Diagnosis:
    """Gather the facts of this machine and judge them."""
    return diagnose(collect(quick, started))


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """For tools: findings and verdicts as plain values."""
    findings = [{**asdict(finding), "blocks": sorted(finding.blocks)} for finding in diagnosis.findings]
    return {"findings": findings, "verdicts": [asdict(verdict) for verdict in diagnosis.verdicts]}


def print_report(console: Console, diagnosis: Diagnosis) -> None:
    """For people: a table of findings, and the verdicts with what mends a no."""
    table = Table("", "what", "found", "mend")
    for finding in diagnosis.findings:
        mend = finding.mend if finding.level in ("warning", "fault") else None
        table.add_row(_MARKS[finding.level], escape(finding.name), escape(finding.came), escape(mend or ""))
    console.print(table)
    for found in diagnosis.verdicts:
        console.print(f"{'[green]yes[/green]' if found.works else '[red]no [/red]'}  [bold]{found.title}[/bold]")
        if not found.works:
            console.print(f"     {found.reason}", markup=False, highlight=False, soft_wrap=True)
            console.print(f"     to mend: {found.mend}", markup=False, highlight=False, soft_wrap=True)
