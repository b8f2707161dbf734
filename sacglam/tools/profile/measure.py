"""One profile: a run's own loop for some intervals, with its clock recorded."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sacglam import config as configuration
from sacglam.build import Parts, build
from sacglam.config import Config
from sacglam.errors import SacglamError
from sacglam.loop import Loop
from sacglam.resolve import resolve
from sacglam.runs import checkpoint
from sacglam.runs.directory import RunDirectory
from sacglam.runs.display import Display
from sacglam.runs.stopping import Stopped, StopSignal
from sacglam.tools.profile.phases import OTHER, Event, Recorder, ordered, slice_event

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


@dataclass(frozen=True)
class Profile:
    """Where the time of some intervals of a run went."""

    label: str
    algorithm: str
    device: str
    threads: int
    warm_up_intervals: int  # not measured, including those that fill the replay buffer
    intervals: int
    env_steps: int
    updates: int
    wall_seconds: float
    cpu_seconds: float  # of all threads of this process; less than their wall time if the machine is shared
    seconds: Mapping[str, float]  # by phase, in the order of the loop; they add up to `wall_seconds`
    rank_seconds_per_update: Mapping[str, float]  # by phase, on the first learner rank's clock; empty without ranks


def measure(source: Source, intervals: int, display: Display) -> tuple[Profile, list[Event]]:
    """Run the loop of `source` for `intervals`, and report where the time went.

    Returns the profile and the trace of all intervals, the warm-up included. Writes nothing.

    Raises:
        SacglamError: it was interrupted, or as for a run.
    """
    begun = source.run and checkpoint.steps(source.run.checkpoints)
    config = resolve(source.config)
    # No end, and the actor learns from the first update, as later in a run.
    config = config.model_copy(
        update={
            "steps": 2**62,
            "algo": config.algo.with_values(warmup_updates=0),
            "partner": config.partner.with_values(budget=1),
        }
    )
    # A run that has begun no longer needs what it started from.
    parts = build(config.model_copy(update={"init_from": None}) if begun else config, display.note)
    with StopSignal() as stop, closing(parts):
        loop = Loop(config, parts)
        try:
            loop.start_up(display, stop.check)
            if source.run and begun:
                folder, _ = checkpoint.restore_newest(source.run.checkpoints, loop.restore, display.note)
                display.note(f"{source.label}: resuming from {folder}")
            loop.publish()
            parts.partner.known |= dict.fromkeys(parts.collector.goals.goals)  # as later in a run
            return _metered(source.label, config, parts, loop.intervals(), intervals, display, stop.check)
        except Stopped as error:
            raise SacglamError(f"the profile of {source.label} was interrupted; nothing was written") from error


@dataclass(frozen=True)
class _Mark:
    """The counters before or after an interval; `cpu` is in seconds of this process."""

    time: float
    cpu: float
    seconds: Mapping[str, float]
    updates: int


def _metered(
    label: str,
    config: Config,
    parts: Parts,
    turns: Iterator[None],
    intervals: int,
    display: Display,
    check: Callable[[], None],
) -> tuple[Profile, list[Event]]:
    """Warm up for two intervals with updates, then measure; `turns` runs an interval of the loop each time."""
    recorder, learners = Recorder(config.device), parts.learners

    def mark() -> _Mark:
        return _Mark(time.perf_counter(), time.process_time(), parts.clock.seconds, learners.version)

    def interval(kind: str) -> None:
        check()
        next(turns)
        start, name = marks[-1].time, f"{kind} {len(marks)}"
        marks.append(mark())
        recorder.events.append(slice_event(name, "interval", start, marks[-1].time - start))

    def on_first_rank() -> dict[str, float]:
        """Seconds by phase on the first rank's clock; empty if the loop's own clock times the updates."""
        return learners.seconds() if config.learners.count else {}

    marks = [mark()]
    parts.clock.watch(recorder)
    display.stage(f"{label}: filling the replay buffer, warming up", _WARM_UP)
    for done in range(_WARM_UP):
        # Not right before the measured intervals: asking ranks waits for their pending updates (runtime.lag).
        begun, on_rank, updates = learners.begun, on_first_rank(), marks[-1].updates
        while marks[-1].updates == updates:
            interval("warm-up")
        display.advance(done + 1)
    display.stage(f"{label}: measuring", intervals)
    left_out = len(marks) - 1
    for done in range(intervals):
        interval("interval")
        display.advance(done + 1)
    start, end = marks[left_out], marks[-1]
    wall, phases = end.time - start.time, _difference(start.seconds, end.seconds)
    spent_on_rank = _difference(on_rank, on_first_rank())
    profile = Profile(
        label=label,
        algorithm=config.algo.type,
        device=config.device,
        threads=config.threads,
        warm_up_intervals=left_out,
        intervals=intervals,
        env_steps=intervals * config.algo.update_interval,
        updates=end.updates - start.updates,
        wall_seconds=wall,
        cpu_seconds=end.cpu - start.cpu,
        seconds={**phases, OTHER: wall - sum(phases.values())},
        rank_seconds_per_update={name: s / (learners.begun - begun) for name, s in spent_on_rank.items()},
    )
    return profile, recorder.events


def _difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: after[name] - before.get(name, 0.0) for name in ordered(after)}
