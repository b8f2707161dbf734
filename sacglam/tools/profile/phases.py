"""The phases of the clock: recorded as spans of time, shown under the names people use, and as `trace.json`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from typing_extensions import override

from sacglam.clock import Watcher

OTHER = "other"
"""The rest of the wall time: what the loop does between phases."""


@dataclass(frozen=True)
class Span:
    """A stretch of time; `start` is a value of `time.perf_counter`, in seconds as is the length."""

    name: str
    start: float
    seconds: float


class Recorder(Watcher):
    """Keeps every phase of a `PhaseClock`, and waits for the device, so that a phase takes as long as its kernels."""

    def __init__(self, device: str) -> None:
        """`device` as in `Config.device`, resolved."""
        self.spans: list[Span] = []
        self.phase = ""
        self._device = device

    @override
    def boundary(self, phase: str) -> None:
        synchronise(self._device)
        self.phase = phase

    @override
    def span(self, phase: str, start: float, seconds: float) -> None:
        self.spans.append(Span(phase, start, seconds))


def synchronise(device: str) -> None:
    """Wait until `device` has finished; a CPU always has."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Look:
    """How a phase is shown."""

    title: str
    colour: str  # "#rrggbb"

    @property
    def dark(self) -> bool:
        """Whether figures on it should be white."""
        red, green, blue = (int(self.colour[i : i + 2], 16) for i in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue < 128


PHASES: Mapping[str, Look] = {
    "environment": Look("environment", "#4e9a51"),
    "scoring": Look("scoring", "#a6d287"),
    "replay": Look("replay", "#e6c229"),
    "submit": Look("batches: to the ranks", "#d9c27e"),
    "batch": Look("batch making", "#f2e29b"),
    "target": Look("target", "#9ecae1"),
    "forward": Look("forward", "#4292c6"),
    "backward": Look("backward", "#08519c"),
    "optimizer": Look("optimizer", "#807dba"),
    "publish": Look("adapter: publish", "#fdae6b"),
    "handoff": Look("adapter: hand-off", "#e6550d"),
    "parity": Look("parity gate", "#a63603"),
    "waiting": Look("waiting", "#bdbdbd"),
    OTHER: Look("other", "#636363"),
}
_UNKNOWN_COLOURS = ("#d6616b", "#ce6dbd", "#8c6d31", "#17becf")


def ordered(names: Iterable[str]) -> list[str]:
    """`names` in the order of the loop; phases that this table does not know come before the rest, by name."""
    order = {name: place for place, name in enumerate(PHASES)}
    return sorted(set(names), key=lambda name: (order.get(name, order[OTHER] - 0.5), name))


def look(name: str) -> Look:
    """How `name` is shown; a phase that the table does not know goes by its own name."""
    return PHASES.get(name) or Look(name, _UNKNOWN_COLOURS[sum(map(ord, name)) % len(_UNKNOWN_COLOURS)])


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
    """All timelines in the Trace Event Format, which Perfetto opens: a process each, from 0, times in microseconds."""
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
