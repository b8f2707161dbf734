"""The phases of the clock: recorded as events of a trace, and shown under the names people use."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from typing_extensions import override

from sacglam.clock import Watcher

OTHER = "other"
"""The rest of the wall time: what the loop does between phases."""
Event = dict[str, Any]
"""An event of the Trace Event Format, with times in microseconds."""


def slice_event(name: str, category: str, start: float, seconds: float) -> Event:
    """A stretch of time, from `start` of `time.perf_counter` on."""
    return {"ph": "X", "name": name, "cat": category, "ts": 1e6 * start, "dur": 1e6 * seconds}


class Recorder(Watcher):
    """Keeps every phase of a `PhaseClock`, and waits for the device, so that a phase takes as long as its kernels."""

    def __init__(self, device: str) -> None:
        """`device` is the resolved `Config.device`."""
        self.events: list[Event] = []
        self.phase = ""
        self._device = device

    @override
    def boundary(self, phase: str) -> None:
        if self._device.startswith("cuda"):
            torch.cuda.synchronize(self._device)
        self.phase = phase

    @override
    def span(self, phase: str, start: float, seconds: float) -> None:
        self.events.append(slice_event(look(phase).title, "phase", start, seconds))


class Look(NamedTuple):
    """How a phase is shown; the colour is "#rrggbb"."""

    title: str
    colour: str


PHASES: Mapping[str, Look] = {
    "environment": Look("environment", "#4e9a51"),
    "scoring": Look("scoring", "#a6d287"),
    "partner": Look("partner", "#c9c04e"),
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
    """`names` in the order of the loop; phases missing from `PHASES` are sorted by name and precede the rest."""
    order = {name: place for place, name in enumerate(PHASES)}
    return sorted(set(names), key=lambda name: (order.get(name, order[OTHER] - 0.5), name))


def look(name: str) -> Look:
    """How a phase is shown; one missing from `PHASES` goes by its own name."""
    return PHASES.get(name) or Look(name, _UNKNOWN_COLOURS[sum(map(ord, name)) % len(_UNKNOWN_COLOURS)])
