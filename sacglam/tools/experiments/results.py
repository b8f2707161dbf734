"""Reads the folders of runs: whether one holds the run that is asked for, and the results of a finished run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sacglam.config import Config
from sacglam.config.experiment import DERIVED
from sacglam.errors import RunDirectoryError
from sacglam.tools.experiments.plan import Run

OVERALL = "overall"
_EVALUATION, _SHARE = "eval_success/", "goal_share"

_OPEN = {"device": "auto", "threads": 0, **DERIVED}
"""Settings that a run settles, and the values that leave them open."""

Curve = dict[str, tuple[float, ...]]
"""The `values` measured, and where: the axes of `AXES` that the run has recorded."""


@dataclass(frozen=True)
class Result:
    """A finished run."""

    run: Run
    config: Config
    summary: dict[str, Any]
    lines: list[dict[str, Any]]

    def success(self, goal_type: str = OVERALL) -> Curve:
        """Greedy success before, during and after training; the last replaces an evaluation at the same step."""
        summary, name = self.summary, _EVALUATION + goal_type
        end = {key: summary[key] for key in ("env_steps", "updates")}
        end |= {"seconds": summary["train_seconds"], "cpu_seconds": summary["train_cpu_seconds"]}
        start = dict.fromkeys(end, 0.0)
        points = [(start, summary["success_before"].get(goal_type))]
        points += [(line, line.get(name)) for line in self.lines if line["env_steps"] < end["env_steps"]]
        return self._curve([*points, (end, summary["success_after"].get(goal_type))])

    def metric(self, name: str) -> Curve:
        """A column of `metrics.jsonl`. In a line with shares of goals, those that are missing are 0."""
        group, _, kind = name.partition("/")

        def value(line: Mapping[str, Any]) -> float | None:
            none = 0.0 if group == _SHARE and kind and any(key.startswith(f"{_SHARE}/") for key in line) else None
            return line.get(name, none)

        return self._curve((line, value(line)) for line in self.lines)

    def _curve(self, points: Iterable[tuple[Mapping[str, Any], float | None]]) -> Curve:
        known = [(at, value) for at, value in points if value is not None]
        axes = {
            "steps": [at["env_steps"] for at, _ in known],
            "seconds": [at["seconds"] for at, _ in known],
            "cpu_seconds": [at.get("cpu_seconds") for at, _ in known],
            "forward_passes": [
                self.config.forward_passes(at["env_steps"], at["updates"]) if "updates" in at else None
                for at, _ in known
            ],
        }
        curve: Curve = {axis: tuple(map(float, values)) for axis, values in axes.items() if None not in values}
        return {**curve, "values": tuple(float(value) for _, value in known)}


def steps_of(run: Run) -> int:
    """Environment steps that a run has taken, according to its last line of metrics."""
    lines = run.directory.metrics()
    return lines[-1]["env_steps"] if lines else 0


def read(run: Run) -> Result | None:
    """A run's results, or None if it is not finished.

    Raises:
        ConfigError: its configuration does not fit this installation of sacglam.
    """
    if not run.finished:
        return None
    directory = run.directory
    return Result(run, directory.config(), directory.summary() or {}, directory.metrics())


def check_same(runs: Sequence[Run]) -> None:
    """Refuse to mix in runs that were made with other settings.

    Raises:
        RunDirectoryError: a folder holds a run with another configuration; names the keys that differ.
    """
    for run in runs:
        now = run.config
        there = run.directory
        if there.claimed and (found := differences(there.config(), now)):
            raise RunDirectoryError(
                f"the run in {there.root} was made with settings other than those of this command; give the same ones "
                "(--set, --threads), choose another --out, or remove the folder.\n  " + "\n  ".join(found)
            )


def differences(there: Config, now: Config) -> list[str]:
    """The settings that differ, as `key: value there, value now`. A setting left open now agrees with any value."""
    before, after = _flat(there.model_dump(mode="json")), _flat(now.model_dump(mode="json"))
    if now.model.path:  # a run records the absolute path
        after["model.name"] = str(now.model.path.resolve())
    for key in ("replay.demonstrations", "init_from"):
        after[key] = after[key] and str(Path(after[key]).resolve())
    before |= {key: left_open for key, left_open in _OPEN.items() if key in after and after[key] == left_open}
    return [
        f"{key}: {before.get(key)!r} there, {after.get(key)!r} now"
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key)
    ]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
