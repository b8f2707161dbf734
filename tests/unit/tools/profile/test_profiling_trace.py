"""`trace.json` holds to the Trace Event Format."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest

from sacglam.tools.profile.phases import slice_event
from sacglam.tools.profile.report import trace

EVENTS = {
    "sac": [
        slice_event("environment", "phase", 50.25, 0.5),
        slice_event("scoring", "phase", 50.75, 1.25),
        slice_event("warm-up 1", "interval", 50.0, 2.0),
        slice_event("forward", "phase", 52.0, 1.5),
        slice_event("interval 2", "interval", 52.0, 1.5),
    ],
    "ppo": [slice_event("own phase", "phase", 90.5, 0.25), slice_event("interval 1", "interval", 90.0, 1.0)],
}


def assert_well_formed(found: dict[str, Any]) -> None:
    """By the format's description: what each kind of event must have, of which type, and that slices nest."""
    assert found["displayTimeUnit"] in ("ms", "ns")
    slices: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in found["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["name"], str)
        match event["ph"]:
            case "M":
                (value,) = event["args"].values()
                assert event["name"] == "process_name"
                assert isinstance(value, str)
            case "X":
                assert event["ts"] >= 0
                assert event["dur"] >= 0
                assert event["cat"]
                slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
            case other:
                pytest.fail(f"an event of kind {other!r}")
    for of_thread in slices.values():
        assert_nested(of_thread)


def assert_nested(slices: list[tuple[float, float]]) -> None:
    open_until: list[float] = []
    for start, end in sorted(slices, key=lambda s: (s[0], -s[1])):
        while open_until and open_until[-1] <= start + 1e-3:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 1e-3, "a slice ends after the one that contains it"
        open_until.append(end)


def test_it_is_well_formed_json() -> None:
    assert_well_formed(json.loads(json.dumps(trace(EVENTS), allow_nan=False)))


def test_phases_and_intervals_in_microseconds_from_the_loops_start() -> None:
    events = trace(EVENTS)["traceEvents"]
    slices = [(e["pid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert slices == [
        (1, "environment", 0.25e6, 0.5e6),
        (1, "scoring", 0.75e6, 1.25e6),
        (1, "warm-up 1", 0.0, 2e6),
        (1, "forward", 2e6, 1.5e6),
        (1, "interval 2", 2e6, 1.5e6),
        (2, "own phase", 0.5e6, 0.25e6),
        (2, "interval 1", 0.0, 1e6),
    ]


def test_processes_are_named() -> None:
    events = trace(EVENTS)["traceEvents"]
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["sac", "ppo"]
