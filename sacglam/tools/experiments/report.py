"""What finished runs show, as the values of `report.json`; the Markdown and the figure are made from these."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from sacglam.tools.experiments import statistics
from sacglam.tools.experiments.plan import AXES, Experiment, Group, Run
from sacglam.tools.experiments.results import OVERALL, Curve, Result, differences, read
from sacglam.tools.experiments.statistics import Estimate

Values = dict[str, Any]
EVALUATIONS = {
    "random": "success_random",
    "before": "success_before",
    "after": "success_after",
    "sampled_after": "success_sampled",
    "heldout_after": "success_heldout",
}
"""Evaluations by their names in a report, and in a summary."""


def report(experiment: Experiment, runs: Sequence[Run], threshold: float, command: str) -> Values:
    """The values of `experiment`, from those of `runs` that are finished."""
    found = {run: read(run) for run in runs}
    results = [result for result in found.values() if result]
    return {
        "title": experiment.title,
        "about": experiment.about,
        "command": command,
        "threshold": threshold,
        "runs": {"finished": len(results), "planned": len(runs)},
        "setting": _setting(results),
        "warnings": [f"{each.run.title}: {text}" for each in results for text in each.summary["warnings"]],
        "groups": [each for group in experiment.groups for each in _groups(group, found, threshold)],
    }


def _setting(results: Sequence[Result]) -> Values:
    """What ran where; a list with several values shows a difference between runs."""
    configs, summaries = [result.config for result in results], [result.summary for result in results]
    machines = [summary["machine"] for summary in summaries]
    other = [(each.run.title, line) for each in results for line in differences(each.config, each.run.config)]
    return {
        "environments": _distinct(config.env.name for config in configs),
        "models": _distinct(config.model.name for config in configs),
        "cpus": _distinct(machine["cpu"] for machine in machines),
        "cores": _distinct(machine["cores"] for machine in machines),
        "platforms": _distinct(summary["platform"] for summary in summaries),
        "devices": _distinct(summary["device"] for summary in summaries),
        "threads": _distinct(summary["threads"] for summary in summaries),
        "training_minutes": round(sum(summary["train_seconds"] for summary in summaries) / 60, 3),
        "evaluation_episodes": _distinct(summary["evaluation_episodes"] for summary in summaries),
        "interim_steps": _distinct(config.evaluation.every_steps for config in configs),
        "interim_episodes": _distinct(config.evaluation.every_episodes for config in configs),
        "versions": _distinct(summary["versions"] for summary in summaries),
        "other_settings": [f"{run}: {line}" for run, line in other if not line.startswith("threads:")],
    }


def _distinct(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _groups(group: Group, found: Mapping[Run, Result | None], threshold: float) -> list[Values]:
    """The values of a group; if its metric is by goal type, of one group per variant, whose members are the types."""
    values, metric = _group(group, found, threshold), group.metric or ""
    if not metric.endswith("/"):
        return [values]
    by_variant = [(member["label"], _by_type_of_goal(member, metric)) for member in values["members"]]
    titled = [(f"{group.title}: {label}", members) for label, members in by_variant if members]
    return [{**values, "title": title, "metric": metric[:-1], "members": members} for title, members in titled]


def _by_type_of_goal(member: Values, metric: str) -> list[Values]:
    """A member for each goal type that `member` has curves of."""
    every = member["curves"].items()
    return [
        {
            **member,
            "label": name.removeprefix(metric),
            "unfinished_seeds": [],
            "curves": {seed: {metric[:-1]: curves[name]} for seed, curves in every},
        }
        for name in sorted({name for _, curves in every for name in curves})
    ]


def _group(group: Group, found: Mapping[Run, Result | None], threshold: float) -> Values:
    by_label = {
        label: {run.seed: result for run, result in found.items() if run.variant.name == variant.name}
        for label, variant in group.variants.items()
    }
    known = {label: [result for result in by_seed.values() if result] for label, by_seed in by_label.items()}
    budget = min((result.config.steps for results in known.values() for result in results), default=0)
    success = group.metric is None
    return {
        "title": group.title,
        "metric": group.metric,
        "axes": list(group.axes),
        "budget_steps": budget,
        "members": [
            {
                "label": label,
                "variant": group.variants[label].name,
                "seeds": [result.run.seed for result in results],
                "unfinished_seeds": [seed for seed, result in by_label[label].items() if not result],
                **(_member(results, budget, threshold) if results and success else {}),
                "curves": _curves(results, group.metric),
            }
            for label, results in known.items()
        ],
        "ratios": _ratios(known, threshold) if success else [],
    }


def _member(results: Sequence[Result], budget: int, threshold: float) -> Values:
    summaries, curves = [result.summary for result in results], [result.success() for result in results]
    areas = [statistics.area(curve["steps"], curve["values"], budget) for curve in curves]
    costs = [_costs(curve, threshold) for curve in curves]
    return {
        "steps": results[0].config.steps,
        "updates": _distinct(summary["updates"] for summary in summaries),
        **{
            name: _by_type([rates for summary in summaries if (rates := summary.get(key))])
            for name, key in EVALUATIONS.items()
        },
        "returns": {
            name: statistics.estimate([summary.get(f"return_{name}") for summary in summaries])
            for name in ("random", "before", "after", "sampled")
        },
        "area": statistics.estimate(areas),
        "to_threshold": {
            axis: statistics.crossing([cost[axis] for cost in costs]) if all(axis in cost for cost in costs) else None
            for axis in AXES
        },
        "train_seconds": statistics.estimate([summary["train_seconds"] for summary in summaries]),
        "steps_per_second": statistics.estimate([each["env_steps"] / each["train_seconds"] for each in summaries]),
    }


def _by_type(rates: Sequence[Mapping[str, float]]) -> dict[str, Estimate | None]:
    """Success over seeds by goal type, `overall` first."""
    types = _distinct([OVERALL, *sorted({name for each in rates for name in each})])
    return {name: statistics.estimate([each.get(name) for each in rates]) for name in types if rates}


def _curves(results: Sequence[Result], metric: str | None) -> Values:
    """The curves by seed: success by goal type, or one metric, or all that begin with a name ending in `/`."""
    if metric is None:
        names = _distinct([OVERALL, *(name for each in results for name in sorted(each.summary["success_after"]))])
    elif metric.endswith("/"):
        found = (name for each in results for line in each.lines for name in line if name.startswith(metric))
        names = sorted(set(found))
    else:
        names = [metric]
    curve = Result.success if metric is None else Result.metric
    return {str(each.run.seed): {name: curve(each, name) for name in names} for each in results}


def _ratios(known: Mapping[str, Sequence[Result]], threshold: float) -> list[Values]:
    """For each pair of members with results, the ratios of their costs over the seeds that both have."""
    costs = {
        label: {each.run.seed: _costs(each.success(), threshold) for each in results}
        for label, results in known.items()
        if results
    }
    ratios = []
    for pair in combinations(costs, 2):
        seeds = sorted(costs[pair[0]].keys() & costs[pair[1]].keys())
        both = {axis: [[costs[label][seed].get(axis) for seed in seeds] for label in pair] for axis in AXES}
        found: Values = {axis: statistics.ratio(*values) for axis, values in both.items()}
        ratios.append({"of": pair[0], "to": pair[1], "seeds": len(seeds), **found})
    return ratios


def _costs(curve: Curve, threshold: float) -> dict[str, float | None]:
    """The place, on each axis, of the first evaluation at or above the threshold; None if there is none."""
    first = next((i for i, value in enumerate(curve["values"]) if value >= threshold), None)
    return {axis: None if first is None else curve[axis][first] for axis in AXES if axis in curve}
