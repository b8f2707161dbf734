"""One profile: a run's own loop for some intervals, with its clock recorded and the model's passes counted."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from sacglam import config as configuration
from sacglam.build import Parts, build
from sacglam.config import Config
from sacglam.errors import SacglamError
from sacglam.loop import Loop
from sacglam.models.loading import load_shape
from sacglam.resolve import resolve
from sacglam.runs import checkpoint
from sacglam.runs.directory import RunDirectory
from sacglam.runs.display import Display
from sacglam.runs.stopping import Stopped, StopSignal
from sacglam.tools.profile.counting import PassCounter, matmul_rate
from sacglam.tools.profile.phases import OTHER, Event, Recorder, ordered, slice_event
from sacglam.tools.profile.result import Profile, Work

_WARM_UP = 2  # intervals with updates: the first ones allocate memory and meet shapes for the first time


@dataclass(frozen=True)
class Source:
    """What to profile: a configuration, or that of a run, which resumes from its newest checkpoint."""

    label: str
    config: Config
    run: RunDirectory | None = None


def sources_of(paths: Sequence[Path], overrides: Sequence[str], trusted: bool = False) -> list[Source]:
    """Configurations (files or names) and runs (folders), each with its own label.

    Raises:
        SacglamError: no configuration or run there, or an override that does not fit it.
    """
    stems: list[str] = []
    found = []
    for given in paths:
        path = given if given.is_dir() else configuration.located(given)
        stems.append(path.resolve().name if path.is_dir() else path.stem)
        same = stems.count(stems[-1])
        run = RunDirectory.open(path, trusted) if path.is_dir() else None
        config = configuration.override(run.config(), overrides) if run else configuration.load(path, overrides)
        found.append(Source(f"{stems[-1]} ({same})" if same > 1 else stems[-1], config, run))
    return found


def measure(source: Source, intervals: int, seconds: float | None, display: Display) -> tuple[Profile, list[Event]]:
    """Run the loop of `source` for `intervals` or, if they are given, `seconds`, and report where the time went.

    Returns the profile and the trace of all intervals, the warm-up included. Writes nothing.

    Raises:
        SacglamError: it was interrupted, or as for a run.
    """
    begun = source.run and checkpoint.steps(source.run.checkpoints)
    config = resolve(source.config)
    # No end, and the actor learns from the first update, as later in a run.
    config = config.model_copy(
        update={"steps": 2**62, "algo": config.algo.steady(), "partner": config.partner.steady()}
    )
    parts = build(config, display.note)
    with StopSignal() as stop, closing(parts):
        loop = Loop(config, parts)
        try:
            loop.start_up(display, stop.check)
            if source.run and begun:
                folder, _ = checkpoint.restore_newest(source.run.checkpoints, loop.restore, display.note)
                display.note(f"{source.label}: resuming from {folder}")
            loop.publish()
            meter = _Meter(source.label, config, parts, display, stop)
            meter.run(loop.intervals(), intervals, seconds)
        except Stopped as error:
            raise SacglamError(f"the profile of {source.label} was interrupted; nothing was written") from error
        return meter.profile(), meter.recorder.events


@dataclass(frozen=True)
class _Mark:
    """The counters before or after an interval; `cpu` is in seconds of this process."""

    time: float
    cpu: float
    seconds: Mapping[str, float]
    updates: int
    tokens: int
    positions: int
    flop: int


class _Meter:
    """Runs the intervals of a loop and reads its counters before and after the measured ones."""

    def __init__(self, label: str, config: Config, parts: Parts, display: Display, stop: StopSignal) -> None:
        self.recorder = Recorder(config.device)
        self._label = label
        self._config = config
        self._parts = parts
        self._display = display
        self._stop = stop
        self._counter = PassCounter(parts.model.lm, config.model) if parts.model else None
        self._marks = [self._mark()]
        self._left_out = 0
        self._flop_per_position = 0.0
        self._rank_seconds: dict[str, float] = {}

    def run(self, turns: Iterator[None], intervals: int, seconds: float | None) -> None:
        """Warm up until there were updates twice, counting FLOP until the first; then measure undisturbed intervals."""
        learners, marks = self._parts.learners, self._marks
        self._display.stage(f"{self._label}: filling the replay buffer, warming up", _WARM_UP)
        self._parts.clock.watch(self.recorder)
        with self._counter.flop if self._counter else nullcontext():
            self._until_updates(turns)
        if self._counter:
            self._flop_per_position = (marks[-1].flop - marks[-2].flop) / (marks[-1].positions - marks[-2].positions)
        self._display.advance(1)
        # Asking ranks waits for their pending updates (runtime.lag), so not right before the measured intervals.
        updates, before = learners.begun, self._seconds_of_ranks()
        self._until_updates(turns)
        self._display.advance(_WARM_UP)
        self._display.stage(f"{self._label}: measuring", max(1, round(seconds or intervals)))
        self._left_out, done = len(marks) - 1, 0.0
        while done < (seconds or intervals):
            self._interval(turns, "interval")
            done = marks[-1].time - marks[self._left_out].time if seconds else len(marks) - 1 - self._left_out
            self._display.advance(int(done))
        spent = _difference(before, self._seconds_of_ranks())
        self._rank_seconds = {name: each / (learners.begun - updates) for name, each in spent.items()}

    def _until_updates(self, turns: Iterator[None]) -> None:
        updates = self._marks[-1].updates
        while self._marks[-1].updates == updates:
            self._interval(turns, "warm-up")

    def _interval(self, turns: Iterator[None], kind: str) -> None:
        self._stop.check()
        next(turns)
        start, name = self._marks[-1].time, f"{kind} {len(self._marks)}"
        self._marks.append(self._mark())
        self.recorder.events.append(slice_event(name, "interval", start, self._marks[-1].time - start))

    def _mark(self) -> _Mark:
        phases, updates, counter = self._parts.clock.seconds, self._parts.learners.updates, self._counter
        counted = (counter.tokens, counter.positions, counter.flop.get_total_flops()) if counter else (0, 0, 0)
        return _Mark(time.perf_counter(), time.process_time(), phases, updates, *counted)

    def _seconds_of_ranks(self) -> dict[str, float]:
        """Seconds by phase on the first rank's clock; empty if the loop's own clock times the updates."""
        return self._parts.learners.seconds() if self._config.learners.count else {}

    def profile(self) -> Profile:
        """The figures of the measured intervals. Times matrix products."""
        config, start, end = self._config, self._marks[self._left_out], self._marks[-1]
        intervals, wall = len(self._marks) - 1 - self._left_out, end.time - start.time
        seconds = _difference(start.seconds, end.seconds)
        seconds[OTHER] = wall - sum(seconds.values())
        work, rate = None, None
        if self._counter:
            positions = end.positions - start.positions
            work = Work(end.tokens - start.tokens, positions, round(positions * self._flop_per_position))
            hidden = load_shape(config.model).get_text_config().hidden_size
            rate = matmul_rate(hidden, getattr(torch, config.model.dtype), config.device)
        return Profile(
            label=self._label,
            algorithm=config.algo.type,
            device=config.device,
            threads=config.threads,
            warm_up_intervals=self._left_out,
            intervals=intervals,
            env_steps=intervals * config.algo.update_interval,
            updates=end.updates - start.updates,
            wall_seconds=wall,
            cpu_seconds=end.cpu - start.cpu,
            seconds=seconds,
            rank_seconds_per_update=self._rank_seconds,
            work=work,
            matmul_rate=rate,
        )


def _difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: after[name] - before.get(name, 0.0) for name in ordered(after)}
