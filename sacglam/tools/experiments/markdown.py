"""`report.md`, from the values of `report.json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sacglam.clock import duration
from sacglam.tools.experiments.report import OUTSIDE_TRAINING
from sacglam.tools.experiments.results import OVERALL

Values = Mapping[str, Any]
_UNTRAINED = ("random", "before")  # often the same for all members


def markdown(report: Values, figure: str) -> str:
    """The report as a person reads it; `figure` is the picture's file name."""
    parts = [
        f"# {report['title']}\n\n{report['about']}\n\n![{report['title']}]({figure})",
        *(part for group in report["groups"] for part in _group(group, report["threshold"])),
        _setting(report),
        _reading(report["threshold"]),
    ]
    return "\n\n".join(parts) + "\n"


def _group(group: Values, threshold: float) -> Iterator[str]:
    yield f"## {group['title']}"
    members = [member for member in group["members"] if member["seeds"]]
    missing = [f"{m['label']}: {_listed(m['unfinished_seeds'])}" for m in group["members"] if m["unfinished_seeds"]]
    if missing:
        yield f"**Not finished, and left out**: seeds of {'; '.join(missing)}."
    if not members:
        return
    if group["metric"] is not None:
        yield _metric(members, group["metric"])
        return
    yield _overview(members, group["budget_steps"], threshold)
    yield "Success by goal type, goals of training: mean ± standard deviation over seeds.\n\n" + _types(
        members, {"random": "random policy", "before": "before", "after": "after"}
    )
    if any(member["heldout_after"] for member in members):
        yield "The same on held-out goals, after training.\n\n" + _types(members, {"heldout_after": "after"})
    if group["ratios"]:
        yield _ratios(group["ratios"], threshold)
    if "seconds" in group["axes"]:
        yield _phases(members)


def _overview(members: Sequence[Values], budget: int, threshold: float) -> str:
    rows = []
    for member in members:
        to = member["to_threshold"]
        rows.append(
            [
                member["label"],
                str(len(member["seeds"])),
                _interval(member["after"][OVERALL]),
                _interval(member["area"]),
                _crossing(to["steps"], lambda x: f"{x:,.0f}"),
                _crossing(to["seconds"], lambda x: f"{x:,.0f} s"),
                f"{member['steps_per_second']['mean']:.1f}",
            ]
        )
    head = ["", "seeds", "success after", f"area to {budget:,} steps", f"steps to {threshold:g}"]
    return _table([*head, f"seconds to {threshold:g}", "steps/s"], rows)


def _types(members: Sequence[Values], columns: Mapping[str, str]) -> str:
    types = list(dict.fromkeys(name for m in members for key in columns for name in m[key]))
    rows = []
    for key, shown in columns.items():
        cells = {m["label"]: [_spread(m[key].get(name)) for name in types] for m in members if m[key]}
        if key in _UNTRAINED and len({tuple(each) for each in cells.values()}) == 1:
            cells = {"all": next(iter(cells.values()))}
        rows += [[f"{label}, {shown}", *each] for label, each in cells.items()]
    return _table(["", *types], rows)


def _ratios(ratios: Sequence[Values], threshold: float) -> str:
    rows = []
    for each in ratios:
        cells = []
        for axis in ("steps", "seconds"):
            found = each[axis]
            cells.append("-" if found is None else f"{_interval(found, '.2f')}, {found['n']} of {each['seeds']} seeds")
        rows.append([f"{each['of']} / {each['to']}", *cells])
    told = f"Steps and seconds to {threshold:g} of one over the other's, geometric mean of the ratios seed by seed."
    return f"{told} Below 1 the first is faster; -: no seed in which both came there.\n\n" + _table(
        ["", "steps", "seconds"], rows
    )


def _phases(members: Sequence[Values]) -> str:
    names = list(dict.fromkeys(name for member in members for name in member["seconds_by_phase"]))
    training = [name for name in names if name not in OUTSIDE_TRAINING]
    outside = [name for name in names if name in OUTSIDE_TRAINING]
    rows = [[name, *(f"{m['seconds_by_phase'].get(name, 0.0):.1f}" for m in members)] for name in training]
    rows.append(["**training**", *(f"**{m['train_seconds']['mean']:.1f}**" for m in members)])
    rows += [[f"{name} (apart)", *(f"{m['seconds_by_phase'].get(name, 0.0):.1f}" for m in members)] for name in outside]
    return "Seconds by phase, mean over seeds.\n\n" + _table(["", *(m["label"] for m in members)], rows)


def _metric(members: Sequence[Values], metric: str) -> str:
    rows = []
    for member in members:
        ends = [curves[metric]["values"] for curves in member["curves"].values()]
        first, last = (sum(values[i] for values in ends) / len(ends) for i in (0, -1))
        rows.append([member["label"], str(len(ends)), f"{first:.3f}", f"{last:.3f}"])
    return f"`{metric}` of metrics.jsonl.\n\n" + _table(["", "seeds", "first line", "last line"], rows)


def _setting(report: Values) -> str:
    setting = report["setting"]
    minutes = duration(60 * setting["training_minutes"])
    steps = [
        f"{m['variant']} {m['steps']:,} steps, {_listed(m['updates'])} updates"
        for group in report["groups"]
        for m in group["members"]
        if "steps" in m
    ]
    unnoted = setting["runs_without_a_note_of_the_machine"]
    machine = f"{_listed(setting['cpus'])}, {_listed(setting['cores'])} cores" if setting["cpus"] else "not noted"
    lines = [
        f"runs: {report['runs']['finished']} of {report['runs']['planned']} finished, {minutes} of training in all",
        f"environment: {_listed(setting['environments'])}; model: {_listed(setting['models'])}",
        f"each: {'; '.join(dict.fromkeys(steps))}",
        f"machine: {machine}; {_listed(setting['platforms'])}, device {_listed(setting['devices'])}; "
        f"threads of a run: {_listed(setting['threads'])}; runs at a time: {_listed(setting['jobs']) or 'not noted'}"
        + (f" ({unnoted} runs were made otherwise, and have no note of it)" if unnoted else ""),
        f"episodes: {_listed(setting['evaluation_episodes'])} before and after, "
        f"{_listed(setting['interim_episodes'])} on the way, every {_listed(setting['interim_steps'])} steps",
        "versions: " + " or ".join(_versions(v) for v in setting["versions"]),
        f"command: `{report['command']}`",
    ]
    if setting["other_settings"]:
        lines.append("**not the settings of this command**: " + "; ".join(setting["other_settings"]))
    return "## What ran\n\n" + "\n".join(f"- {line}" for line in lines)


def _reading(threshold: float) -> str:
    return f"""## How to read it

- Success is greedy, on fresh episodes. A curve begins with the untrained policy (*before*). Evaluations of one seed
  play the same episodes. The random policy is measured on those of *before* and *after*.
- Brackets are 95 % confidence intervals of the mean over seeds: Student's t, n - 1 degrees of freedom. They speak of
  seeds, not of the episodes within one evaluation. Spread is the standard deviation with n - 1.
- *Area* is mean success from step 0 to the shortest budget, by trapezoids between evaluations.
- *Steps* and *seconds to {threshold:g}* are those of the first evaluation at or above it, so they are no finer than the
  evaluations. A run that never came there counts as longer than all others in the median, and there is no mean then.
- Seconds are those of training: evaluations and checkpoints are not in them. A mean over seconds ends with its fastest
  seed."""


def _interval(found: Values | None, form: str = ".3f") -> str:
    if found is None:
        return "-"
    mean = f"{found['mean']:{form}}"
    return mean if found["low"] is None else f"{mean} [{found['low']:{form}}, {found['high']:{form}}]"


def _spread(found: Values | None) -> str:
    if found is None:
        return "-"
    return f"{found['mean']:.3f}" + ("" if found["std"] is None else f" ± {found['std']:.3f}")


def _crossing(found: Values, shown: Any) -> str:
    total = len(found["values"])
    reached = f"{found['reached']} of {total} reached"
    if found["median"] is None:
        return reached
    if found["estimate"] is None:
        return f"median {shown(found['median'])}; {reached}"
    estimate = found["estimate"]
    if estimate["low"] is None:
        return f"{shown(estimate['mean'])}; {reached}"
    interval = f"[{shown(estimate['low'])}, {shown(estimate['high'])}]"
    return f"median {shown(found['median'])}, mean {shown(estimate['mean'])} {interval}; {reached}"


def _versions(versions: Values) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _listed(values: Sequence[Any]) -> str:
    return " and ".join(f"{value:,}" if isinstance(value, int) else str(value) for value in values)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
