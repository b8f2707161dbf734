"""`report.md`, from the values of `report.json`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from sacglam.clock import duration
from sacglam.tools.experiments.plan import AXES
from sacglam.tools.experiments.report import EVALUATIONS
from sacglam.tools.experiments.results import OVERALL
from sacglam.tools.experiments.statistics import Crossing, Estimate

Values = Mapping[str, Any]
_HOW_TO_READ = """## How to read it

Success is greedy, on fresh episodes; *before* is the untrained policy's. Brackets are 95 % confidence intervals over
seeds. -: not reached, or not recorded by all runs. docs/guides/comparing.md explains every number."""


def markdown(report: Values, figure: str) -> str:
    """The report as text; `figure` is the picture's file name."""
    parts = [
        f"# {report['title']}\n\n{report['about']}\n\n![{report['title']}]({figure})",
        *(part for group in report["groups"] for part in _group(group, report["threshold"])),
        _setting(report),
        *(["## Warnings\n\n" + "\n".join(f"- {each}" for each in report["warnings"])] if report["warnings"] else []),
        _HOW_TO_READ,
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
    if any(member["returns"]["after"] for member in members):
        yield "Returns: undiscounted, before training and after it."
        yield _table({"": m["label"], **{k: _interval(v, ".2f") for k, v in m["returns"].items()}} for m in members)
    yield f"The cost of success {threshold:g}."
    yield _table(
        {"": m["label"], **{_title(axis): _crossing(m["to_threshold"][axis]) for axis in AXES}} for m in members
    )
    yield "Success by goal type: mean ± standard deviation over seeds."
    yield _types(members)
    if group["ratios"]:
        yield (
            f"Ratios of the cost of {threshold:g}, geometric mean over seeds. Below 1 the first is cheaper; "
            "-: no seed in which both reached it."
        )
        yield _table(_ratio(each) for each in group["ratios"])


def _metric(members: Sequence[Values], metric: str) -> str:
    def row(member: Values) -> dict[str, str]:
        found = [values for curves in member["curves"].values() if (values := curves[metric]["values"])]
        first, last = (f"{fmean(values[i] for values in found):.3f}" if found else "-" for i in (0, -1))
        return {"": member["label"], "seeds": str(len(found)), "first line": first, "last line": last}

    return f"`{metric}` of metrics.jsonl.\n\n" + _table(map(row, members))


def _overview(members: Sequence[Values], budget: int) -> str:
    return _table(
        {
            "": member["label"],
            "seeds": str(len(member["seeds"])),
            "final success (greedy)": _interval(member["after"][OVERALL]),
            "sampled": _interval(member["sampled_after"].get(OVERALL)),
            f"area to {budget:,} steps": _interval(member["area"]),
            "training": duration(member["train_seconds"].mean),
            "steps/s": f"{member['steps_per_second'].mean:.1f}",
        }
        for member in members
    )


def _types(members: Sequence[Values]) -> str:
    types = dict.fromkeys(name for member in members for key in EVALUATIONS for name in member[key])
    return _table(
        {"": f"{m['label']}, {_title(key)}", **{name: _spread(m[key].get(name)) for name in types}}
        for key in EVALUATIONS
        for m in members
        if m[key]
    )


def _ratio(ratio: Values) -> dict[str, str]:
    def cell(found: Estimate | None) -> str:
        return "-" if found is None else f"{_interval(found, '.2f')}, {found.n} of {ratio['seeds']} seeds"

    return {"": f"{ratio['of']} / {ratio['to']}", **{_title(axis): cell(ratio[axis]) for axis in AXES}}


def _setting(report: Values) -> str:
    setting, count = report["setting"], report["runs"]
    members = [member for group in report["groups"] for member in group["members"] if "steps" in member]
    budgets = [f"{m['variant']} {m['steps']:,} steps, {_join(m['updates'])} updates" for m in members]
    lines = [
        f"runs: {count['finished']} of {count['planned']} finished, "
        f"{duration(60 * setting['training_minutes'])} of training in all",
        *([f"each: {'; '.join(dict.fromkeys(budgets))}"] if budgets else []),
        *(f"{_title(key)}: {_join(values)}" for key, values in setting.items() if isinstance(values, list) and values),
        f"command: `{report['command']}`",
    ]
    return "## What ran\n\n" + "\n".join(f"- {line}" for line in lines)


def _title(key: str) -> str:
    return key.replace("_", " ").replace("cpu", "CPU")


def _interval(found: Estimate | None, form: str = ".3f") -> str:
    if found is None:
        return "-"
    return f"{found.mean:{form}}" + ("" if found.low is None else f" [{found.low:{form}}, {found.high:{form}}]")


def _spread(found: Estimate | None) -> str:
    return "-" if found is None else f"{found.mean:.3f}" + ("" if found.std is None else f" ± {found.std:.3f}")


def _crossing(found: Crossing | None) -> str:
    if found is None:
        return "-"
    reached = f"{found.reached} of {len(found.values)} reached"
    return reached if found.median is None else f"median {found.median:,.0f}; {reached}"


def _join(values: Iterable[Any]) -> str:
    def text(value: Any) -> str:
        if isinstance(value, dict):
            return ", ".join(f"{name} {version}" for name, version in value.items())
        return f"{value:,}" if isinstance(value, int) else str(value)

    return " and ".join(map(text, values))


def _table(rows: Iterable[Mapping[str, str]]) -> str:
    """A table whose head is the keys of its rows, of which there is at least one."""
    listed = list(rows)
    texts = [[*listed[0]], *([*row.values()] for row in listed)]
    head, *cells = ([text.replace("|", r"\|") for text in each] for each in texts)
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *cells))
