"""Order and looks of phases, those that the table does not know among them."""

from __future__ import annotations

import re

from sacglam.tools.profile.phases import PHASES, look, ordered


def test_order_is_the_loops_with_unknown_ones_before_the_rest() -> None:
    assert ordered(["other", "optimizer", "b", "a", "environment", "a"]) == [
        "environment",
        "optimizer",
        "a",
        "b",
        "other",
    ]


def test_an_unknown_phase_goes_by_its_name() -> None:
    assert look("my_phase").title == "my_phase"
    assert look("backward").title == "backward"


def test_colours_differ_and_can_be_read() -> None:
    colours = [found.colour for found in PHASES.values()]
    assert len(set(colours)) == len(colours)
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in [*colours, look("my_phase").colour])
    assert look("backward").dark
    assert not look("scoring").dark
