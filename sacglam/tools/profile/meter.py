"""The laps of a training loop: which intervals warm up, which are measured, and when it has been enough."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from sacglam.assembly import Parts
from sacglam.runs.display import Display
from sacglam.runs.progress import Progress
from sacglam.runs.stopping import StopSignal
from sacglam.tools.profile.counting import Tally

WARM_UP = 2
"""Intervals with updates that are left out: the first ones allocate memory and meet shapes for the first time."""


@dataclass(frozen=True)
class Length:
    """How long to measure: so many intervals, or at least so many seconds."""

    intervals: int = 10
    seconds: float | None = None

    @property
    def whole(self) -> int:
        """The measure in its own unit, for a progress bar."""
        return self.intervals if self.seconds is None else max(1, round(self.seconds))

    def done(self, intervals: int, seconds: float) -> int:
        """How far a measurement is, in the same unit."""
        return intervals if self.seconds is None else int(seconds)

    def reached(self, intervals: int, seconds: float) -> bool:
        """Whether it has been enough."""
        return intervals >= self.intervals if self.seconds is None else intervals > 0 and seconds >= self.seconds


@dataclass(frozen=True)
class RankMark:
    """What a learner rank's clock shows after so many updates."""

    updates: int
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Mark:
    """The counters at the end of an interval; `cpu` are the seconds that the processor gave to this process."""

    time: float
    cpu: float
    seconds: Mapping[str, float]
    updates: int
    passes: int


class Meter:
    """Stands where a training's display does, since the loop calls that at the end of each interval.

    It ends the loop as a user would, by the stop signal.
    """

    def __init__(
        self,
        parts: Parts,
        tally: Tally,
        stop: StopSignal,
        length: Length,
        *,
        label: str,
        display: Display,
        ranks: bool,
    ) -> None:
        """`ranks`: updates run in processes with clocks of their own."""
        self.marks: list[Mark] = []
        self.first = 0
        self.rank_marks: list[RankMark] = []
        self._parts = parts
        self._tally = tally
        self._stop = stop
        self._length = length
        self._label = label
        self._display = display
        self._ranks = ranks
        self._warm = 0
        self._started = False

    @property
    def complete(self) -> bool:
        """Whether as much has been measured as was asked for."""
        return bool(self.first) and self._length.reached(*self._measured())

    def begin(self) -> None:
        """The loop begins as soon as this returns."""
        self._display.stage(f"{self._label}: filling the replay, warming up", WARM_UP)
        self._started = True
        self.marks.append(self._mark())

    def stage(self, name: str, total: int) -> None:
        """Pass on what comes before the loop."""
        if not self._started:
            self._display.stage(f"{self._label}: {name}", total)

    def advance(self, done: int) -> None:
        """The end of an interval."""
        if not self._started:
            self._display.advance(done)
            return
        self.marks.append(self._mark())
        if self.first:
            self._display.advance(self._length.done(*self._measured()))
            if self.complete:
                self._mark_ranks()
                self._stop.requested = True
        else:
            self._warm_up()

    def metrics(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Nothing: what is learnt is not the point."""

    def note(self, text: str) -> None:
        """Pass it on."""
        self._display.note(text)

    def _warm_up(self) -> None:
        self._warm += self.marks[-1].updates > self.marks[-2].updates
        self._display.advance(self._warm)
        if self._warm == WARM_UP - 1 and not self.rank_marks:
            # Asking waits for updates under way (runtime.lag), so not at the border of what is measured.
            self._mark_ranks()
        if self._warm == WARM_UP:
            self._display.stage(f"{self._label}: measuring", self._length.whole)
            self.marks[-1] = self._mark()
            self.first = len(self.marks) - 1

    def _measured(self) -> tuple[int, float]:
        return len(self.marks) - 1 - self.first, self.marks[-1].time - self.marks[self.first].time

    def _mark_ranks(self) -> None:
        if self._ranks:
            learners = self._parts.learners
            self.rank_marks.append(RankMark(learners.begun, learners.seconds()))

    def _mark(self) -> Mark:
        clock, learners = self._parts.clock, self._parts.learners
        return Mark(time.perf_counter(), time.process_time(), clock.seconds, learners.updates, len(self._tally.passes))
