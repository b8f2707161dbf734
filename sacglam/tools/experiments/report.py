"""What finished runs show, as the values of `report.json`; the Markdown and the figure are made from these."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from math import inf
from statistics import median
from typing import Any

from sacglam.tools.experiments import statistics
from sacglam.tools.experiments.plan import MEASURED, Experiment, Group, Run
from sacglam.tools.experiments.results import OVERALL, Curve, Result, differences, read
from sacglam.tools.experiments.statistics import Crossing, Estimate

Values = dict[str, Any]


def report(experiment: Experiment, runs: Sequence[Run], threshold: float, command: str) -> Values:
    """The values of `experiment`, from those of `runs` that are finished."""
    found = {run: read(run) for run in runs}
    results = [result for result in found.values() if result]
    return {
        "name": experiment.name,
        "title": experiment.title,
        "about": experiment.about,
        "command": command,
        "threshold": threshold,
        "runs": {"finished": len(results), "planned": len(runs)},
        "setting": _setting(results),
        "groups": [_group(group, found, threshold) for group in experiment.groups],
    }


def _setting(results: Sequence[Result]) -> Values:
    """What ran where; the runs differ in what has several values."""
    configs, summaries = [result.config for result in results], [result.summary for result in results]
    machines = [machine for result in results for machine in result.machines]
    return {
        "environments": _distinct(config.env.name for config in configs),
        "models": _distinct(config.model.name for config in configs),
        "cpus": _distinct(machine["cpu"] for machine in machines),
        "cores": _distinct(machine["cores"] for machine in machines),
        "jobs": _distinct(session["jobs"] for result in results for session in result.sessions),
        "runs_without_a_note_of_the_machine": sum(not (result.machines and result.sessions) for result in results),
        "other_settings": [
            f"{result.run.title}: {line}"
            for result in results
            for line in differences(result.config, result.run.config)
            if not line.startswith("threads:")  # reported below
        ],
        "platforms": _distinct(summary["platform"] for summary in summaries),
        "devices": _distinct(summary["device"] for summary in summaries),
        "threads": _distinct(summary["threads"] for summary in summaries),
        "versions": _distinct(summary["versions"] for summary in summaries),
        "training_minutes": round(sum(summary["train_seconds"] for summary in summaries) / 60, 1),
        "evaluation_episodes": _distinct(summary["evaluation_episodes"] for summary in summaries),
        "interim_steps": _distinct(config.evaluation.every_steps for config in configs),
        "interim_episodes": _distinct(config.evaluation.every_episodes for config in configs),
    }


def _distinct(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _group(group: Group, found: Mapping[Run, Result | None], threshold: float) -> Values:
    by_label = {
        label: {run.seed: result for run, result in found.items() if run.variant == variant}
        for label, variant in group.members.items()
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
                "variant": group.members[label].name,
                "seeds": [result.run.seed for result in results],
                "unfinished_seeds": [seed for seed, result in by_label[label].items() if not result],
                **(_member(results, budget, threshold) if results and success else {}),
                "curves": {str(result.run.seed): _curves(result, group.metric) for result in results},
            }
            for label, results in known.items()
        ],
        "ratios": _ratios(known, threshold) if success else [],
        "break_even": _break_even(known, threshold) if success else [],
    }


def _member(results: Sequence[Result], budget: int, threshold: float) -> Values:
    summaries, curves = [result.summary for result in results], [result.success() for result in results]
    areas = [statistics.area(curve["steps"], curve["values"], budget) for curve in curves]
    return {
        "steps": results[0].config.steps,
        "updates": _distinct(summary["updates"] for summary in summaries),
        "random": _by_type([summary["success_random"] for summary in summaries]),
        "before": _by_type([summary["success_before"] for summary in summaries]),
        "after": _by_type([summary["success_after"] for summary in summaries]),
        "after_interquartile": statistics.interquartile([summary["success_after"][OVERALL] for summary in summaries]),
        "sampled_after": _by_type([sampled for summary in summaries if (sampled := summary.get("success_sampled"))]),
        "spl_after": _estimate([summary["spl_after"] for summary in summaries]),
        "heldout_after": _by_type([result.heldout for result in results if result.heldout]),
        "area": _estimate(areas),
        "area_interquartile": statistics.interquartile(areas),
        "to_threshold": {axis: _crossing(curves, axis, threshold) for axis in MEASURED},
        "waits_per_step": _waits_per_step(results[0]),
        "train_seconds": _estimate([summary["train_seconds"] for summary in summaries]),
        "steps_per_second": _estimate([summary["env_steps"] / summary["train_seconds"] for summary in summaries]),
        "seconds_by_phase": {
            name: sum(summary["seconds"].get(name, 0.0) for summary in summaries) / len(summaries)
            for name in _distinct(name for summary in summaries for name in summary["seconds"])
        },
    }


def _estimate(values: Sequence[float | None]) -> Estimate | None:
    known = [value for value in values if value is not None]
    return statistics.estimate(known) if known else None


def _crossing(curves: Sequence[Curve], axis: str, threshold: float) -> Crossing | None:
    """Where the runs reached the threshold; None unless all have recorded this axis."""
    known = all(axis in curve for curve in curves)
    return statistics.crossing([_reached(curve, axis, threshold) for curve in curves]) if known else None


def _by_type(rates: Sequence[Mapping[str, float]]) -> dict[str, Estimate | None]:
    """Success over seeds by goal type, `overall` first."""
    types = _distinct([OVERALL, *sorted({name for each in rates for name in each})])
    return {name: _estimate([each.get(name) for each in rates]) for name in types} if rates else {}


def _curves(result: Result, metric: str | None) -> Values:
    """The curves of one run: success by goal type, or one metric."""
    if metric is not None:
        return {metric: result.metric(metric)}
    types = [OVERALL, *sorted(result.summary["success_after"].keys() - {OVERALL})]
    return {name: result.success(name) for name in types}


def _ratios(known: Mapping[str, Sequence[Result]], threshold: float) -> list[Values]:
    """The cost of the threshold for one member over another's, over the seeds that both have."""
    found = []
    for pair in combinations([label for label, results in known.items() if results], 2):
        curves = [{result.run.seed: result.success() for result in known[label]} for label in pair]
        seeds = sorted(curves[0].keys() & curves[1].keys())
        ratios: Values = {
            axis: statistics.ratio(*([_reached(each[seed], axis, threshold) for seed in seeds] for each in curves))
            for axis in MEASURED
        }
        found.append({"of": pair[0], "to": pair[1], "seeds": len(seeds), **ratios})
    return found


def _break_even(known: Mapping[str, Sequence[Result]], threshold: float) -> list[Values]:
    """For each two members, the latency from which on the one that waits for fewer steps is the faster."""
    runs = {label: [_cost(result, threshold) for result in results] for label, results in known.items() if results}
    waits: dict[str, float] = {label: median(cost[0] for cost in costs) for label, costs in runs.items()}
    found = []
    for pair in combinations(runs, 2):
        ones, others = sorted(pair, key=lambda label: waits[label])
        if waits[ones] < inf:
            found.append({"of": ones, "to": others, **asdict(statistics.break_even(runs[ones], runs[others]))})
    return found


def _cost(result: Result, threshold: float) -> tuple[float, float]:
    """Steps to wait for and seconds to the threshold; infinite if it was not reached."""
    curve = result.success()
    steps, seconds = (_reached(curve, axis, threshold) for axis in ("steps", "seconds"))
    return (inf, inf) if steps is None or seconds is None else (_waits_per_step(result) * steps, seconds)


def _waits_per_step(result: Result) -> float:
    """How often the loop waits for a step, for each step: worker processes take one each at the same time."""
    env = result.config.env
    return -(-env.copies // env.workers) / env.copies if env.workers else 1.0


def _reached(curve: Curve, axis: str, threshold: float) -> float | None:
    return statistics.first_at(curve[axis], curve["values"], threshold) if axis in curve else None
