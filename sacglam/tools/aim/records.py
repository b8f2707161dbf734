"""What a run's files hold, as points of a run explorer: named values with a context at an environment step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sacglam.config import Config

AXES = ("updates", "seconds")
"""Counters that are tracked beside every value, in its context, so that an explorer can lay it out over them."""
_SUBSETS = {"success": "train", "eval_success": "eval", "heldout_success": "heldout"}
_ENDS = {"before": 0, "after": 1}
_ZERO = 1e-6  # Aim's explorer takes an x of 0 for a missing one, and then draws nothing of that curve


@dataclass(frozen=True)
class Distribution:
    """Values of which the histogram counts."""

    values: tuple[float, ...]


@dataclass(frozen=True)
class Texts:
    """Texts to read side by side."""

    texts: tuple[str, ...]


@dataclass(frozen=True)
class Picture:
    """An image file."""

    path: Path


@dataclass(frozen=True)
class Point:
    """One value of the sequence given by `name` and `context`; `step` is in environment steps."""

    name: str
    value: float | Distribution | Texts | Picture
    step: int
    context: Mapping[str, str]


def of_metrics(line: Mapping[str, Any]) -> list[Point]:
    """A line of `metrics.jsonl`; success by subset (train, eval, heldout) and goal type, the rest without context."""
    step = int(line["env_steps"])
    points = []
    for key, value in line.items():
        head, _, goal_type = key.partition("/")
        if key in ("env_steps", *AXES):
            continue
        if head in _SUBSETS:
            context = {"subset": _SUBSETS[head], "goal_type": goal_type or "overall"}
            points.append(Point("success", value, step, context))
        else:
            points.append(Point(key, value, step, {}))
    return [*points, *_axes(points, line)]


def of_summary(summary: Mapping[str, Any]) -> list[Point]:
    """Success and SPL before and after the training from `summary.json`, as evaluations at its first and last step."""
    points = []
    for when, share in _ENDS.items():
        success, spl = summary.get(f"success_{when}") or {}, summary.get(f"spl_{when}")
        step = share * int(summary.get("env_steps", 0))
        found = [Point("success", rate, step, {"subset": "eval", "goal_type": name}) for name, rate in success.items()]
        if spl is not None:
            found.append(Point("spl", spl, step, {"subset": "eval", "goal_type": "overall"}))
        counters = {"updates": summary.get("updates", 0), "seconds": summary.get("train_seconds", 0.0)}
        points += [*found, *_axes(found, {name: share * value for name, value in counters.items()})]
    return points


def of_samples(line: Mapping[str, Any]) -> list[Point]:
    """A line of `samples.jsonl`: the episodes as text, and the distributions of what their states offered."""
    step = int(line["env_steps"])
    context = {"subset": "train"}
    steps = [s for episode in line["episodes"] for s in episode["steps"]]
    probabilities = tuple(p for s in steps for p in s["probabilities"])
    q = tuple(value for s in steps for value in s["q"])
    points = [
        Point("episodes", Texts(tuple(as_text(episode) for episode in line["episodes"])), step, context),
        Point("action_probabilities", Distribution(probabilities), step, context),
    ]
    return [*points, Point("q_values", Distribution(q), step, context)] if q else points


def as_text(episode: Mapping[str, Any]) -> str:
    """An episode of `samples.jsonl` to read: each state, and its actions by falling probability."""
    outcome = "success" if episode["success"] else "no success"
    lines = [f"Goal: {episode['goal']}   ({episode['goal_type']}, {outcome} in {len(episode['steps'])} steps)"]
    for number, step in enumerate(episode["steps"], start=1):
        lines += ["", f"--- step {number} ---", step["observation"]]
        lines += list(_offered(step))
        if step["achieved"]:
            lines.append(f"achieved: {', '.join(step['achieved'])}")
    return "\n".join(lines)


def _offered(step: Mapping[str, Any]) -> Iterator[str]:
    """A line for each action, the taken one marked."""
    by_probability = sorted(range(len(step["actions"])), key=lambda i: -step["probabilities"][i])
    for i in by_probability:
        mark = ">" if i == step["taken"] else " "
        q = f"  Q {step['q'][i]:+.3f}" if step["q"] else ""
        yield f"{mark} {step['probabilities'][i]:.3f}{q}  {step['actions'][i]}"


def _axes(points: list[Point], counters: Mapping[str, Any]) -> list[Point]:
    """The counters in every context of `points`."""
    contexts = {tuple(point.context.items()): point for point in points}.values()
    known = [axis for axis in AXES if axis in counters]
    return [Point(axis, counters[axis] or _ZERO, p.step, p.context) for p in contexts for axis in known]


def algorithm(config: Config) -> str:
    """The name by which curves are told apart: the algorithm, and whether it has hindsight."""
    name = config.algo.type.upper()
    return f"{name}+HER" if config.algo.type == "sac" and config.replay.hindsight else name
