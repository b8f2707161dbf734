"""The phases of the clock: recorded as events of a trace, and shown under the names people use."""

from collections.abc import Iterable
from typing import Any

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
        self._device = device

    @override
    def boundary(self, phase: str) -> None:
        if self._device.startswith("cuda"):
            torch.cuda.synchronize(self._device)

    @override
    def span(self, phase: str, start: float, seconds: float) -> None:
        self.events.append(slice_event(TITLES.get(phase, phase), "phase", start, seconds))


TITLES = {
    "environment": "environment",
    "scoring": "scoring",
    "partner": "partner",
    "goals": "goals",
    "replay": "replay",
    "submit": "batches: to the ranks",
    "batch": "batch making",
    "target": "target",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "publish": "adapter: publish",
    "handoff": "adapter: hand-off",
    "parity": "parity gate",
    "waiting": "waiting",
    OTHER: "other",
}
"""The phases in the order of the loop, and how they are shown; any other goes by its own name."""


def ordered(names: Iterable[str]) -> list[str]:
    """`names` in the order of the loop; phases missing from `TITLES` are sorted by name and precede the rest."""
    order = {name: place for place, name in enumerate(TITLES)}
    return sorted(set(names), key=lambda name: (order.get(name, order[OTHER] - 0.5), name))
