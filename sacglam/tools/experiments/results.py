"""What finished runs left behind, as plain data."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sacglam.config import Config
from sacglam.runs.directory import RunDirectory
from sacglam.tools.experiments.plan import Run
from sacglam.tools.experiments.state import State, heldout_file, sessions, state

OVERALL = "overall"
_EVALUATION = "eval_success/"


@dataclass(frozen=True)
class Curve:
    """Values measured during a run, at environment steps and at seconds of training."""

    steps: tuple[float, ...]
    seconds: tuple[float, ...]
    values: tuple[float, ...]

    def axis(self, name: str) -> tuple[float, ...]:
        """`steps` or `seconds`."""
        return self.seconds if name == "seconds" else self.steps


@dataclass(frozen=True)
class Result:
    """A finished run."""

    run: Run
    config: Config
    summary: dict[str, Any]
    lines: list[dict[str, Any]]
    heldout: dict[str, Any] | None
    sessions: list[dict[str, Any]]

    def success(self, goal_type: str = OVERALL) -> Curve:
        """Greedy success: before, on the way, and after, which takes the place of an evaluation at the same step."""
        end = (self.summary["env_steps"], self.summary["train_seconds"])
        points = [(0.0, 0.0, self.summary["success_before"].get(goal_type))]
        points += [
            (line["env_steps"], line["seconds"], line[_EVALUATION + goal_type])
            for line in self.lines
            if _EVALUATION + goal_type in line and line["env_steps"] < end[0]
        ]
        points.append((*end, self.summary["success_after"].get(goal_type)))
        return _curve(points)

    def metric(self, name: str) -> Curve:
        """A column of `metrics.jsonl`."""
        return _curve((line["env_steps"], line["seconds"], line[name]) for line in self.lines if name in line)


def _curve(points: Iterable[tuple[float, float, float | None]]) -> Curve:
    known = [(steps, seconds, value) for steps, seconds, value in points if value is not None]
    columns = [tuple(float(row[i]) for row in known) for i in range(3)]
    return Curve(*columns)


def read(run: Run) -> Result | None:
    """A run's results, or None if it has not come to its end.

    Raises:
        ConfigError: its configuration does not fit this version of sacglam.
    """
    if state(run) is not State.FINISHED:
        return None
    directory = RunDirectory(run.folder)
    try:
        heldout = json.loads(heldout_file(run).read_text())
    except (OSError, ValueError):
        heldout = None
    return Result(run, directory.config(), directory.summary() or {}, directory.metrics(), heldout, sessions(run))
