"""Logs of runs on their way into Aim: lines that are added while it reads, and damaged ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sacglam.tools.tracking.records import Point, of_metrics, of_samples
from sacglam.tools.tracking.sync import Tail

DAMAGED = [
    b"\xff",
    b"{",
    b"[" * 9999,
    *map(str.encode, ["[]", "null", "3", "{}", '{"success": 1}', r'{"env_steps": 7, "\ud800": 1}']),
    *(f'{{"env_steps": {steps}}}'.encode() for steps in ("null", '"32"', "3.5", "-1", "true", "1" + "0" * 400)),
    *(f'{{"env_steps": 7, "{key}": {value}}}'.encode() for key in ("q", "updates", "seconds")
      for value in ("null", '"x"', "[]", "{}", "true", "NaN", "1" + "0" * 400)),
]  # fmt: skip
ODD: list[object] = [[None], "\ud800", ["\ud800"]]
STEP = {"observation": "o", "actions": ["a"], "probabilities": [1.0], "q": [0.5], "taken": 0, "achieved": []}
HOSTILE = [None, "x", "\ud800", ["\ud800"], 3, [], [None], ["x"], [[]], {}, 10**400, [10**400], [0.5, 0.5]]


def points(line: dict[str, object]) -> list[Point]:
    return [Point("a", float(str(line["a"])), 0, {})]


def test_a_tail_gives_whole_lines_once(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    tail = Tail(file, points)
    assert list(tail) == []
    file.write_text('{"env_steps": 1, "a": 1}\n{"env_steps": 2, "a": 2')
    assert list(tail) == [points({"a": 1})]
    with file.open("a") as opened:
        opened.write("}\n")
    assert list(tail) == [points({"a": 2})]
    assert list(tail) == []


def test_damaged_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    whole = b'{"env_steps": 32, "updates": 1, "seconds": 0.5, "success": 0.5}'
    file.write_bytes(b"\n".join([whole, *DAMAGED, whole, b""]))
    tail = Tail(file, of_metrics)
    assert list(tail) == [of_metrics(json.loads(whole))] * 2
    assert tail.damaged == len(DAMAGED)


@pytest.mark.parametrize("key", STEP)
def test_samples_with_a_value_of_another_kind_are_left_out_and_counted(key: str, tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    steps = [{name: value for name, value in STEP.items() if name != key}]
    steps += [{**STEP, key: value} for value in HOSTILE if type(value) is not type(STEP[key]) or value in ODD]
    episodes = [{"goal": "g", "goal_type": "t", "success": True, "steps": [step]} for step in [STEP, *steps]]
    lines = [{"env_steps": 32, "episodes": [episode]} for episode in episodes]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tail = Tail(file, of_samples)
    assert [[point.name for point in each] for each in tail] == [["episodes", "action_probabilities", "q_values"]]
    assert tail.damaged == len(steps)
