"""Order and looks of phases, known and unknown."""

from __future__ import annotations

import io

from rich.console import Console

from sacglam.tools.profile.phases import ordered
from sacglam.tools.profile.report import phase_table


def test_order_is_that_of_the_loop_and_unknown_phases_precede_the_rest() -> None:
    assert ordered(["other", "optimizer", "b", "a", "environment", "a"]) == [
        "environment",
        "optimizer",
        "a",
        "b",
        "other",
    ]


def test_a_table_has_a_row_for_each_phase_and_their_sum() -> None:
    sac, ppo = {"forward": 3.0, "environment": 1.0}, {"environment": 2.0, "my_phase": 6.0}
    table = phase_table("times", [("sac", sac, lambda s: f"{s:.1f} s"), ("ppo", ppo, lambda s: f"{s / 8:.0%}")])
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    rows = [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert [row for row in rows if len(row) > 3] == [
        ["environment", "1.0", "s", "25%"],
        ["forward", "3.0", "s", "0%"],
        ["my_phase", "0.0", "s", "75%"],
        ["all", "4.0", "s", "100%"],
    ]
