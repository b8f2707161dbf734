"""One profile: a run's own loop for some intervals, with the clock recorded and the model's passes counted."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from sacglam import config as configuration
from sacglam.build import Parts, build
from sacglam.config import Config
from sacglam.errors import ProfileError
from sacglam.loop import Loop
from sacglam.resolve import resolve
from sacglam.runs import checkpoint
from sacglam.runs.directory import RunDirectory
from sacglam.runs.display import Display
from sacglam.runs.stopping import Stopped, StopSignal
from sacglam.tools.profile.counting import PassCounter, floor_of
from sacglam.tools.profile.phases import OTHER, Interval, Recorder, Timeline, ordered
from sacglam.tools.profile.result import Profile

_WARM_UP = 2  # intervals with updates: the first ones allocate memory and meet shapes for the first time


@dataclass(frozen=True)
class Source:
    """What to profile: a configuration, or that of a run, which resumes from its newest checkpoint."""

    label: str
    config: Config
    run: RunDirectory | None = None


def sources_of(paths: Sequence[Path], overrides: Sequence[str], trusted: bool = False) -> list[Source]:
    """Configurations (files) and runs (folders), each with a label of its own.

    Raises:
        SacglamError: no configuration or run there, or an override that does not fit it.
    """
    stems: list[str] = []
    found = []
    for path in paths:
        stems.append(path.resolve().name if path.is_dir() else path.stem)
        same = stems.count(stems[-1])
        run = RunDirectory.open(path, trusted) if path.is_dir() else None
        config = configuration.override(run.config(), overrides) if run else configuration.load(path, overrides)
        found.append(Source(f"{stems[-1]} ({same})" if same > 1 else stems[-1], config, run))
    return found


@dataclass(frozen=True)
class Mark:
    """The counters between two intervals; `cpu` are the seconds that the processor gave to this process."""

    time: float
    cpu: float
    seconds: Mapping[str, float]
    updates: int
    passes: int


def measure(source: Source, intervals: int, seconds: float | None, display: Display) -> tuple[Profile, Timeline]:
    """Run the loop of `source` and report where the time of some intervals went: so many, or `seconds` of them.

    Writes nothing.

    Raises:
        ProfileError: it was interrupted.
        SacglamError: as for a run.
    """
    begun = source.run and checkpoint.steps(source.run.checkpoints)
    config = resolve(source.config)
    # No end, and the actor learns from the first update, as later in a run.
    config = config.model_copy(update={"steps": 2**62, "algo": config.algo.steady()})
    parts = build(config, display.note)
    with StopSignal() as stop, closing(parts):
        loop = Loop(config, parts)
        meter = _Meter(source.label, config, parts, display, stop)
        try:
            loop.start_up(display, stop.check)
            if source.run and begun:
                folder, _ = checkpoint.restore_newest(source.run.checkpoints, loop.restore, display.note)
                display.note(f"{source.label}: resuming from {folder}")
            loop.publish()
            meter.run(loop, intervals, seconds)
        except Stopped as error:
            raise ProfileError(f"the profile of {source.label} was interrupted; nothing was written") from error
        return meter.profile(), meter.timeline()


class _Meter:
    """Marks the intervals of a loop; the `first` of them warm up."""

    def __init__(self, label: str, config: Config, parts: Parts, display: Display, stop: StopSignal) -> None:
        self._label = label
        self._config = config
        self._parts = parts
        self._display = display
        self._stop = stop
        self._recorder = Recorder(config.device)
        self._passes = PassCounter(parts.model.lm, self._recorder, config.model) if parts.model else None
        self._marks: list[Mark] = []
        self._first = 0
        self._rank_seconds: dict[str, float] = {}

    def run(self, loop: Loop, intervals: int, seconds: float | None) -> None:
        """Warm up, with FLOP counted until the first updates; then measure undisturbed intervals."""
        learners, turns = self._parts.learners, loop.intervals()
        self._display.stage(f"{self._label}: filling the replay, warming up", _WARM_UP)
        self._parts.clock.watch(self._recorder)
        self._marks.append(self._mark())
        with self._passes.flop if self._passes else nullcontext():
            self._until_updates(turns)
        self._display.advance(1)
        # Asking ranks waits for their pending updates (runtime.lag), so not where the measured intervals begin.
        updates, before = learners.begun, self._seconds_of_ranks()
        self._until_updates(turns)
        self._display.advance(_WARM_UP)
        total = seconds or intervals
        self._display.stage(f"{self._label}: measuring", max(1, round(total)))
        self._first = len(self._marks) - 1
        self._marks[-1] = self._mark()
        progress = 0.0  # in the unit of `total`
        while progress < total:
            self._interval(turns)
            progress = self._measured()[1 if seconds else 0]
            self._display.advance(int(progress))
        spent = _difference(before, self._seconds_of_ranks())
        self._rank_seconds = {name: each / (learners.begun - updates) for name, each in spent.items()}

    def _until_updates(self, turns: Iterator[None]) -> None:
        updates = self._marks[-1].updates
        while self._marks[-1].updates == updates:
            self._interval(turns)

    def _interval(self, turns: Iterator[None]) -> None:
        self._stop.check()
        next(turns)
        self._marks.append(self._mark())

    def _mark(self) -> Mark:
        passes = len(self._passes.passes) if self._passes else 0
        parts = self._parts
        return Mark(time.perf_counter(), time.process_time(), parts.clock.seconds, parts.learners.updates, passes)

    def _seconds_of_ranks(self) -> dict[str, float]:
        """By the first rank's clock; nothing where the loop's own clock times the updates."""
        return self._parts.learners.seconds() if self._config.learners.count else {}

    def _measured(self) -> tuple[int, float]:
        """Intervals and seconds."""
        return len(self._marks) - 1 - self._first, self._marks[-1].time - self._marks[self._first].time

    def profile(self) -> Profile:
        """The measured intervals in figures; times matrix products for the floor."""
        config, start, end = self._config, self._marks[self._first], self._marks[-1]
        intervals, wall = self._measured()
        seconds = _difference(start.seconds, end.seconds)
        seconds[OTHER] = wall - sum(seconds.values())
        work, floor = {}, None
        if self._passes:
            self._display.stage(f"{self._label}: measuring matrix products", 1)
            work = self._passes.work(start.passes, end.passes)
            floor = floor_of(config, self._passes.passes[start.passes : end.passes])
            self._display.advance(1)
        return Profile(
            label=self._label,
            algorithm=config.algo.type,
            device=config.device,
            threads=config.threads,
            warm_up_intervals=self._first,
            intervals=intervals,
            env_steps=intervals * config.algo.update_interval,
            updates=end.updates - start.updates,
            wall_seconds=wall,
            cpu_seconds=end.cpu - start.cpu,
            seconds=seconds,
            rank_seconds_per_update=self._rank_seconds,
            work=work,
            floor=floor,
        )

    def timeline(self) -> Timeline:
        """All intervals, and the phases in them."""
        intervals = []
        for number, (start, end) in enumerate(pairwise(self._marks), start=1):
            figures: dict[str, float] = {"updates": end.updates - start.updates}
            if self._passes:
                tokens = sum(each.tokens for each in self._passes.passes[start.passes : end.passes])
                figures["tokens per second"] = tokens / (end.time - start.time)
            kind = "interval" if number > self._first else "warm-up"
            intervals.append(Interval(f"{kind} {number}", start.time, end.time - start.time, figures))
        return Timeline(self._label, intervals, self._recorder.spans)


def _difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: after[name] - before.get(name, 0.0) for name in ordered(after)}
