"""`trace.json` in the Trace Event Format (its JSON object form), which Perfetto and chrome://tracing open."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sacglam.tools.profile.phases import Span, look


@dataclass(frozen=True)
class Interval:
    """One turn of the loop; `figures` are shown with it, and those per second as a curve."""

    name: str
    start: float
    seconds: float
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Timeline:
    """All intervals of a profile, warm-up included, and the phases in them."""

    label: str
    intervals: Sequence[Interval]
    spans: Sequence[Span]


def trace(timelines: Sequence[Timeline]) -> dict[str, Any]:
    """All timelines in one trace, a process each, all beginning at 0; times are in microseconds."""
    events = [event for pid, timeline in enumerate(timelines, start=1) for event in _events(pid, timeline)]
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _events(pid: int, timeline: Timeline) -> list[dict[str, Any]]:
    origin = timeline.intervals[0].start
    where = {"pid": pid, "tid": 1}

    def slice_(name: str, category: str, start: float, seconds: float) -> dict[str, Any]:
        return {"ph": "X", "name": name, "cat": category, "ts": 1e6 * (start - origin), "dur": 1e6 * seconds, **where}

    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "args": {"name": timeline.label}, **where},
        {"ph": "M", "name": "process_sort_index", "args": {"sort_index": pid}, **where},
        {"ph": "M", "name": "thread_name", "args": {"name": "training loop"}, **where},
    ]
    for interval in timeline.intervals:
        turn = slice_(interval.name, "interval", interval.start, interval.seconds)
        events.append({**turn, "args": dict(interval.figures)})
        events += [
            {"ph": "C", "name": name, "ts": turn["ts"], "args": {name: value}, **where}
            for name, value in interval.figures.items()
            if name.endswith("per second")
        ]
    return events + [slice_(look(span.name).title, "phase", span.start, span.seconds) for span in timeline.spans]
