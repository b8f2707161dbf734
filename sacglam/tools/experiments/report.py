"""What finished runs say together, as the plain values of `report.json`; the Markdown and the figure show these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

from sacglam.tools.experiments import statistics
from sacglam.tools.experiments.plan import Experiment, Group, Run, Variant
from sacglam.tools.experiments.results import OVERALL, Curve, Result, read
from sacglam.tools.experiments.state import differences

OUTSIDE_TRAINING = ("evaluation", "checkpoint")
"""Phases whose seconds are no training time."""
_AXES = ("steps", "seconds")

Values = dict[str, Any]


def report(experiment: Experiment, runs: Sequence[Run], threshold: float, command: str) -> Values:
    """Everything that is known of `experiment` from the finished ones of `runs`."""
    found = {(run.variant, run.seed): read(run) for run in runs}
    results = [result for result in found.values() if result]
    by_variant = {
        variant: {seed: result for (other, seed), result in found.items() if other == variant}
        for variant in experiment.variants
    }
    return {
        "name": experiment.name,
        "title": experiment.title,
        "about": experiment.about,
        "command": command,
        "threshold": threshold,
        "runs": {"finished": len(results), "planned": len(runs)},
        "setting": _setting(results),
        "groups": [_group(group, by_variant, threshold) for group in experiment.groups],
    }


def _setting(results: Sequence[Result]) -> Values:
    """What ran where; a list of several values says that the runs differ in it."""
    sessions = [session for result in results for session in result.sessions]
    return {
        "environments": _distinct(result.config.env.name for result in results),
        "models": _distinct(result.config.model.name for result in results),
        "cpus": _distinct(session["cpu"] for session in sessions),
        "cores": _distinct(session["cores"] for session in sessions),
        "jobs": _distinct(session["jobs"] for session in sessions),
        "runs_without_a_note_of_the_machine": sum(not result.sessions for result in results),
        "other_settings": _distinct(line for result in results for line in _other_settings(result)),
        "platforms": _distinct(result.summary["platform"] for result in results),
        "devices": _distinct(result.summary["device"] for result in results),
        "threads": _distinct(result.summary["threads"] for result in results),
        "versions": _distinct(result.summary["versions"] for result in results),
        "training_minutes": round(sum(result.summary["train_seconds"] for result in results) / 60, 1),
        "evaluation_episodes": _distinct(result.summary["evaluation_episodes"] for result in results),
        "interim_steps": _distinct(result.config.evaluation.every_steps for result in results),
        "interim_episodes": _distinct(result.config.evaluation.every_episodes for result in results),
    }


def _other_settings(result: Result) -> list[str]:
    """What a run has otherwise than the command would; threads are reported by themselves."""
    lines = differences(result.config, result.run.config)
    return [f"{result.run.title}: {line}" for line in lines if not line.startswith("threads:")]


def _distinct(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _group(group: Group, by_variant: Mapping[Variant, Mapping[int, Result | None]], threshold: float) -> Values:
    known = {
        label: [result for result in by_variant[variant].values() if result] for label, variant in group.members.items()
    }
    budget = min((r.config.steps for results in known.values() for r in results), default=0)
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
                "unfinished_seeds": [s for s, result in by_variant[group.members[label]].items() if not result],
                **(_member(results, budget, threshold) if results and success else {}),
                "curves": {str(result.run.seed): _curves(result, group.metric) for result in results},
            }
            for label, results in known.items()
        ],
        "ratios": _ratios(known, threshold) if success else [],
    }


def _member(results: Sequence[Result], budget: int, threshold: float) -> Values:
    curves = [result.success() for result in results]
    return {
        "steps": results[0].config.steps,
        "updates": _distinct(result.summary["updates"] for result in results),
        "random": _by_type([result.summary["success_random"] for result in results]),
        "before": _by_type([result.summary["success_before"] for result in results]),
        "after": _by_type([result.summary["success_after"] for result in results]),
        "spl_after": _estimate([result.summary["spl_after"] for result in results]),
        "heldout_after": _by_type([result.heldout["success"] for result in results if result.heldout]),
        "area": _estimate([statistics.area(curve.steps, curve.values, budget) for curve in curves]),
        "to_threshold": {
            axis: asdict(statistics.crossing([_crossed(curve, axis, threshold) for curve in curves])) for axis in _AXES
        },
        "train_seconds": _estimate([result.summary["train_seconds"] for result in results]),
        "steps_per_second": _estimate([r.summary["env_steps"] / r.summary["train_seconds"] for r in results]),
        "seconds_by_phase": _phases(results),
    }


def _crossed(curve: Curve, axis: str, threshold: float) -> float | None:
    return statistics.first_at(curve.axis(axis), curve.values, threshold)


def _estimate(values: Sequence[float | None]) -> Values | None:
    known = [value for value in values if value is not None]
    return asdict(statistics.estimate(known)) if known else None


def _by_type(rates: Sequence[Mapping[str, float]]) -> Values:
    """Success over seeds by goal type, `overall` first."""
    types = _distinct([OVERALL, *sorted({name for each in rates for name in each})])
    return {name: _estimate([each.get(name) for each in rates]) for name in types} if rates else {}


def _phases(results: Sequence[Result]) -> Values:
    """Mean seconds of each phase over seeds; a phase that a run did not have counts as nothing."""
    names = _distinct(name for result in results for name in result.summary["seconds"])
    return {name: sum(r.summary["seconds"].get(name, 0.0) for r in results) / len(results) for name in names}


def _curves(result: Result, metric: str | None) -> Values:
    """The curves of one run: success by goal type, or one metric."""
    if metric is not None:
        return {metric: asdict(result.metric(metric))}
    types = [OVERALL, *sorted(result.summary["success_after"].keys() - {OVERALL})]
    return {name: asdict(result.success(name)) for name in types}


def _ratios(known: Mapping[str, Sequence[Result]], threshold: float) -> list[Values]:
    """Steps and seconds to the threshold of one member over another's, by seeds that both have."""
    found = []
    for one, other in combinations([label for label, results in known.items() if results], 2):
        here, there = ({result.run.seed: result.success() for result in known[label]} for label in (one, other))
        seeds = sorted(here.keys() & there.keys())
        measure = _ratio_over(seeds, here, there, threshold)
        found.append({"of": one, "to": other, "seeds": len(seeds), **{axis: measure(axis) for axis in _AXES}})
    return found


def _ratio_over(
    seeds: Sequence[int], here: Mapping[int, Curve], there: Mapping[int, Curve], threshold: float
) -> Callable[[str], Values | None]:
    def over(axis: str) -> Values | None:
        numerators = [_crossed(here[seed], axis, threshold) for seed in seeds]
        estimated = statistics.ratio(numerators, [_crossed(there[seed], axis, threshold) for seed in seeds])
        return None if estimated is None else asdict(estimated)

    return over
