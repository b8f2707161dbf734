"""The contents of a run's files as points for Aim: named values with a context at an environment step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from sacglam.config import Config
from sacglam.files import Form
from sacglam.runs.logs import METRICS_LINE, Line

AXES = ("updates", "seconds")
"""Counters that are tracked in the context of every value, so that the explorer can use them as its x axis."""
_SUBSETS = {"success": "train", "eval_success": "eval"}
_ZERO = 1e-6  # Aim's explorer treats an x of 0 as missing, and then does not draw the curve


@dataclass(frozen=True)
class Point:
    """One value of the sequence given by `name` and `context`; `step` is in environment steps.

    The value is a number, the values of a distribution, or texts to read side by side.
    """

    name: str
    value: float | Sequence[float] | Sequence[str]
    step: int
    context: Mapping[str, str]


class SampledStep(Form):
    """A step of `samples.jsonl`."""

    observation: str
    actions: Annotated[list[str], Field(min_length=1)]
    probabilities: list[Annotated[float, Field(ge=0, le=1)]]
    q: list[Annotated[float, Field(ge=-1e30, le=1e30)]]
    """Empty if the critic values only states."""
    taken: int
    achieved: list[str]

    @model_validator(mode="after")
    def _of_one_length(self) -> Self:
        if not len(self.probabilities) == len(self.actions) == (len(self.q) or len(self.actions)):
            raise ValueError("expected a probability, and a Q value if any, for each action")
        return self


class SampledEpisode(Form):
    """An episode of `samples.jsonl`."""

    goal: str
    goal_type: str
    success: bool
    steps: Annotated[list[SampledStep], Field(min_length=1)]


class _Samples(Line):
    episodes: Annotated[list[SampledEpisode], Field(min_length=1)]


def of_metrics(line: Mapping[str, Any]) -> list[Point]:
    """A line of `metrics.jsonl`; success by subset (train, eval) and goal type, the rest by goal type at most.

    Raises:
        ValueError: a value is not a number.
    """
    METRICS_LINE.validate_python(line)
    step, points = int(line["env_steps"]), []
    for key, number in line.items():
        head, _, goal_type = key.partition("/")
        if key in ("env_steps", *AXES):
            continue
        value = float(number)  # Aim takes only 64-bit ints
        if head in _SUBSETS:
            context = {"subset": _SUBSETS[head], "goal_type": goal_type or "overall"}
            points.append(Point("success", value, step, context))
        else:
            points.append(Point(head, value, step, {"goal_type": goal_type} if goal_type else {}))
    return [*points, *_axes(points, line)]


def of_summary(summary: Mapping[str, Any]) -> list[Point]:
    """Success and SPL before and after training from `summary.json`, as evaluations at the first and last step.

    Success on held-out goals is a point at the last step.
    """
    end = {"updates": summary.get("updates", 0), "seconds": summary.get("train_seconds", 0.0)}
    points = []
    for when, step, counters in (("before", 0, dict.fromkeys(end, 0.0)), ("after", summary.get("env_steps", 0), end)):
        success, spl = summary.get(f"success_{when}") or {}, summary.get(f"spl_{when}")
        rates = [Point("success", rate, step, {"subset": "eval", "goal_type": name}) for name, rate in success.items()]
        if when == "after":
            heldout = (summary.get("success_heldout") or {}).items()
            rates += [Point("success", rate, step, {"subset": "heldout", "goal_type": name}) for name, rate in heldout]
        if spl is not None:
            rates.append(Point("spl", spl, step, {"subset": "eval", "goal_type": "overall"}))
        points += [*rates, *_axes(rates, counters)]
    return points


def _axes(points: list[Point], counters: Mapping[str, Any]) -> list[Point]:
    """The counters in every context of `points`."""
    contexts = {tuple(point.context.items()): point for point in points}.values()
    known = [axis for axis in AXES if axis in counters]
    return [Point(axis, float(counters[axis]) or _ZERO, p.step, p.context) for p in contexts for axis in known]


def of_samples(line: Mapping[str, Any]) -> list[Point]:
    """A line of `samples.jsonl`: the episodes as text, and the distributions over the actions of all their states.

    Raises:
        ValueError: it does not hold episodes.
    """
    sampled = _Samples.model_validate(line)
    steps = [step for episode in sampled.episodes for step in episode.steps]
    values: dict[str, Sequence[str] | Sequence[float]] = {
        "episodes": [as_text(episode) for episode in sampled.episodes],
        "action_probabilities": [p for step in steps for p in step.probabilities],
        "q_values": [q for step in steps for q in step.q],
    }
    return [Point(name, each, sampled.env_steps, {"subset": "train"}) for name, each in values.items() if each]


def as_text(episode: SampledEpisode) -> str:
    """An episode as text: each state, and its actions from most to least probable, with a mark at the taken one."""
    outcome = "success" if episode.success else "no success"
    lines = [f"Goal: {episode.goal}   ({episode.goal_type}, {outcome} in {len(episode.steps)} steps)"]
    for number, step in enumerate(episode.steps, start=1):
        lines += ["", f"--- step {number} ---", step.observation]
        for i in sorted(range(len(step.actions)), key=lambda i: -step.probabilities[i]):
            mark = ">" if i == step.taken else " "
            q = f"  Q {step.q[i]:+.3f}" if step.q else ""
            lines.append(f"{mark} {step.probabilities[i]:.3f}{q}  {step.actions[i]}")
        if step.achieved:
            lines.append(f"achieved: {', '.join(step.achieved)}")
    return "\n".join(lines)


def algorithm(config: Config) -> str:
    """The name that curves are grouped by: the algorithm, and whether it uses hindsight."""
    algo = config.algo
    return f"{algo.label}+HER" if config.replay.hindsight.relabels and not algo.on_policy else algo.label
