"""`report.md`, from the values of `report.json`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sacglam.clock import duration
from sacglam.runs.summary import OUTSIDE_TRAINING
from sacglam.tools.experiments.results import OVERALL
from sacglam.tools.experiments.statistics import Crossing, Estimate

Values = Mapping[str, Any]
_UNTRAINED = ("random", "before")  # often the same for all members
_COSTS = {
    "steps": ("steps", "{:,.0f}"),
    "seconds": ("seconds", "{:,.0f} s"),
    "cpu_seconds": ("CPU seconds", "{:,.0f} s"),
    "forward_passes": ("forward passes", "{:,.0f}"),
}
_LATENCIES = (0.0, 0.001, 0.01, 0.1, 1.0, 10.0)


def markdown(report: Values, figure: str) -> str:
    """The report as text; `figure` is the picture's file name."""
    parts = [
        f"# {report['title']}\n\n{report['about']}\n\n![{report['title']}]({figure})",
        *(part for group in report["groups"] for part in _group(group, report["threshold"])),
        _setting(report),
        _HOW_TO_READ.format(threshold=report["threshold"]),
    ]
    return "\n\n".join(parts) + "\n"


def _group(group: Values, threshold: float) -> Iterator[str]:
    yield f"## {group['title']}"
    members = [member for member in group["members"] if member["seeds"]]
    missing = [f"{m['label']}: {_join(m['unfinished_seeds'])}" for m in group["members"] if m["unfinished_seeds"]]
    if missing:
        yield f"**Not finished, and left out**: seeds of {'; '.join(missing)}."
    if not members:
        return
    if group["metric"] is not None:
        yield _metric(members, group["metric"])
        return
    yield _overview(members, group["budget_steps"])
    yield _costs(members, threshold)
    yield "Success by goal type, training goals: mean ± standard deviation over seeds.\n\n" + _types(
        members, {"random": "random policy", "before": "before", "after": "after", "sampled_after": "after, sampled"}
    )
    if any(member["heldout_after"] for member in members):
        yield "The same on held-out goals, after training.\n\n" + _types(members, {"heldout_after": "after"})
    if group["ratios"]:
        yield _ratios(group["ratios"], threshold)
    if "latency" in group["axes"]:
        yield _latencies(members, group["break_even"], threshold)
    if "seconds" in group["axes"]:
        yield _phases(members)


def _overview(members: Sequence[Values], budget: int) -> str:
    return "Brackets are 95 % confidence intervals over seeds.\n\n" + _table(
        {
            "": member["label"],
            "seeds": str(len(member["seeds"])),
            "success after": _interval(member["after"][OVERALL]),
            "interquartile": _interval(member["after_interquartile"]),
            "sampled": _interval(member["sampled_after"].get(OVERALL)),
            f"area to {budget:,} steps": _interval(member["area"]),
            "area, interquartile": _interval(member["area_interquartile"]),
            "steps/s": f"{member['steps_per_second'].mean:.1f}",
        }
        for member in members
    )


def _costs(members: Sequence[Values], threshold: float) -> str:
    return f"The cost of success {threshold:g}.\n\n" + _table(
        {
            "": member["label"],
            **{title: _crossing(member["to_threshold"][axis], form.format) for axis, (title, form) in _COSTS.items()},
        }
        for member in members
    )


def _latencies(members: Sequence[Values], break_even: Sequence[Values], threshold: float) -> str:
    def row(member: Values) -> dict[str, str]:
        steps, seconds = (member["to_threshold"][axis].median for axis in ("steps", "seconds"))
        waits = member["waits_per_step"]
        return {_latency(at): "-" if steps is None else f"{seconds + waits * steps * at:,.0f} s" for at in _LATENCIES}

    lines = [
        f"- {each['of']} is faster than {each['to']} " + _from(each["latency"], each["interval"]) for each in break_even
    ]
    return (
        f"Time to {threshold:g} if an environment step took so much longer: median seconds, and median steps times the "
        "latency, shared by `env.workers`.\n\n"
        + _table({"": member["label"], **row(member)} for member in members)
        + "\n\n"
        + "\n".join(lines)
    ).strip()


def _from(latency: float | None, interval: tuple[float | None, float | None] | None) -> str:
    first = "at no latency" if latency is None else f"from {_latency(latency)} on" if latency else "at any latency"
    return first + ("" if interval is None else f" [{', '.join(map(_latency, interval))}]")


def _latency(seconds: float | None) -> str:
    return "never" if seconds is None else f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _types(members: Sequence[Values], columns: Mapping[str, str]) -> str:
    types = dict.fromkeys(name for member in members for key in columns for name in member[key])
    rows = []
    for key, shown in columns.items():
        cells = {m["label"]: {name: _spread(m[key].get(name)) for name in types} for m in members if m[key]}
        if not cells:
            continue
        first = next(iter(cells.values()))
        if key in _UNTRAINED and all(each == first for each in cells.values()):
            cells = {"all": first}
        rows += [{"": f"{label}, {shown}", **each} for label, each in cells.items()]
    return _table(rows)


def _ratios(ratios: Sequence[Values], threshold: float) -> str:
    def cell(found: Estimate | None, seeds: int) -> str:
        return "-" if found is None else f"{_interval(found, '.2f')}, {found.n} of {seeds} seeds"

    rows = [
        {"": f"{each['of']} / {each['to']}"}
        | {title: cell(each[axis], each["seeds"]) for axis, (title, _) in _COSTS.items()}
        for each in ratios
    ]
    return (
        f"Ratios of the cost of {threshold:g}, geometric mean over seeds. Below 1 the first is faster; "
        "-: no seed in which both reached it.\n\n" + _table(rows)
    )


def _phases(members: Sequence[Values]) -> str:
    def row(name: str, title: str) -> dict[str, str]:
        return {"": title} | {m["label"]: f"{m['seconds_by_phase'].get(name, 0.0):.1f}" for m in members}

    names = dict.fromkeys(name for member in members for name in member["seconds_by_phase"])
    total = {"": "**training**"} | {m["label"]: f"**{m['train_seconds'].mean:.1f}**" for m in members}
    during = [row(name, name) for name in names if name not in OUTSIDE_TRAINING]
    outside = [row(name, f"{name} (apart)") for name in names if name in OUTSIDE_TRAINING]
    return "Seconds by phase, mean over seeds.\n\n" + _table([*during, total, *outside])


def _metric(members: Sequence[Values], metric: str) -> str:
    rows = []
    for member in members:
        ends = [curves[metric]["values"] for curves in member["curves"].values()]
        first, last = (sum(values[i] for values in ends) / len(ends) for i in (0, -1))
        rows.append(
            {"": member["label"], "seeds": str(len(ends)), "first line": f"{first:.3f}", "last line": f"{last:.3f}"}
        )
    return f"`{metric}` of metrics.jsonl.\n\n" + _table(rows)


def _setting(report: Values) -> str:
    setting, count = report["setting"], report["runs"]
    text = {key: _join(values) for key, values in setting.items() if isinstance(values, list)}
    members = [member for group in report["groups"] for member in group["members"] if "steps" in member]
    budgets = [f"{m['variant']} {m['steps']:,} steps, {_join(m['updates'])} updates" for m in members]
    machine = f"{text['cpus']}, {text['cores']} cores" if setting["cpus"] else "unknown"
    unknown = setting["runs_without_a_note_of_the_machine"]
    versions = [", ".join(f"{name} {version}" for name, version in each.items()) for each in setting["versions"]]
    lines = [
        f"runs: {count['finished']} of {count['planned']} finished, "
        f"{duration(60 * setting['training_minutes'])} of training in all",
        f"environment: {text['environments']}; model: {text['models']}",
        f"each: {'; '.join(dict.fromkeys(budgets))}",
        f"machine: {machine}; {text['platforms']}, device {text['devices']}; threads of a run: {text['threads']}; "
        f"runs at a time: {text['jobs'] or 'unknown'}"
        + (f" (not all of this is known of {unknown} runs, which another command made)" if unknown else ""),
        f"episodes: {text['evaluation_episodes']} before and after, {text['interim_episodes']} in interim evaluations, "
        f"every {text['interim_steps']} steps",
        f"versions: {' or '.join(versions)}",
        f"command: `{report['command']}`",
    ]
    if setting["other_settings"]:
        lines.append("**not the settings of this command**: " + "; ".join(setting["other_settings"]))
    return "## What ran\n\n" + "\n".join(f"- {line}" for line in lines)


_HOW_TO_READ = """## How to read it

- Success is greedy, on fresh episodes. A curve starts with the untrained policy (*before*). Evaluations of one seed
  play the same episodes. The random policy plays those of *before* and *after*.
- *Sampled* actions are evaluated after training, on the same episodes; -: in a run made before that was recorded.
- Brackets are 95 % confidence intervals of the mean over seeds: Student's t, n - 1 degrees of freedom. They cover the
  variation between seeds, not between the episodes of one evaluation. Spread is the standard deviation with n - 1.
- *Interquartile* is the mean of the middle half of the seeds, of fewer than four that of all, with percentiles of
  50,000 bootstrap resamples of the seeds. Such an interval never leaves the range of its seeds, and is too narrow with
  few: docs/guides/comparing.md has figures.
- *Area* is mean success from step 0 to the shortest budget, by trapezoids between evaluations.
- The cost of {threshold:g} is that of the first evaluation at or above it, so it is no finer than the evaluations. A
  run that never reached it counts as longer than all others in the median, and there is no mean.
- Seconds are those of training, without evaluations, sample episodes and checkpoints, and CPU seconds are those of
  all processes meanwhile; -: not all runs have recorded them. A mean over seconds ends with its fastest seed.
- Forward passes are the least that the settings allow if no state occurs twice: one at a state to act, two for forward
  and backward.
- Added latency is paid once for each step, since copies step one after another; with `env.workers`, once for as many
  steps as there are workers. With `runtime.lag` a slow environment hides updates, and the time is shorter. Intervals of
  the latency come from resampling the seeds of both."""


def _interval(found: Estimate | None, form: str = ".3f") -> str:
    if found is None:
        return "-"
    return f"{found.mean:{form}}" + ("" if found.low is None else f" [{found.low:{form}}, {found.high:{form}}]")


def _spread(found: Estimate | None) -> str:
    if found is None:
        return "-"
    return f"{found.mean:.3f}" + ("" if found.std is None else f" ± {found.std:.3f}")


def _crossing(found: Crossing | None, shown: Callable[[float], str]) -> str:
    if found is None:
        return "-"
    reached, mean = f"{found.reached} of {len(found.values)} reached", found.estimate
    if found.median is None:
        return reached
    if mean is None:
        return f"median {shown(found.median)}; {reached}"
    if mean.low is None or mean.high is None:
        return f"{shown(mean.mean)}; {reached}"
    interval = f"[{shown(mean.low)}, {shown(mean.high)}]"
    return f"median {shown(found.median)}, mean {shown(mean.mean)} {interval}; {reached}"


def _join(values: Sequence[Any]) -> str:
    return " and ".join(f"{value:,}" if isinstance(value, int) else str(value) for value in values)


def _table(rows: Iterable[Mapping[str, str]]) -> str:
    """A table whose head is the keys of its rows, of which there is at least one."""
    listed = list(rows)
    head = list(listed[0])
    lines = [head, ["---"] * len(head), *(row.values() for row in listed)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
