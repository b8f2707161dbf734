"""What the clock tells a profile: every phase as a span of time, measured on a device that has finished."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Span:
    """A stretch of time; `start` is a moment of `time.perf_counter`, in seconds as is the length."""

    name: str
    start: float
    seconds: float


class Recorder:
    """Watches a `PhaseClock`."""

    def __init__(self, synchronise: Callable[[], None]) -> None:
        """`synchronise` waits for the device, so that what a phase has launched counts there and not where it ends."""
        self.spans: list[Span] = []
        self.phase = ""
        self.synchronise = synchronise

    def border(self, phase: str) -> None:
        """Wait for the device."""
        self.synchronise()
        self.phase = phase

    def span(self, phase: str, start: float, seconds: float) -> None:
        """Keep it."""
        self.spans.append(Span(phase, start, seconds))


def synchroniser(device: str) -> Callable[[], None]:
    """What waits for `device` (as in `Config.device`, resolved) to finish: on a CPU nothing."""
    if device.startswith("cuda"):
        return lambda: torch.cuda.synchronize(device)
    return lambda: None
