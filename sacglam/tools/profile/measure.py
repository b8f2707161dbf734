"""One profile: a training's own loop for some intervals, with a clock that is watched and a model that is counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from sacglam.assembly import Parts, build
from sacglam.build import resolve
from sacglam.config import Config
from sacglam.errors import ProfileError
from sacglam.models.base import PackedLM
from sacglam.runs import checkpoint
from sacglam.runs.directory import RunDirectory
from sacglam.runs.display import Display
from sacglam.runs.progress import MetricsWindow
from sacglam.runs.stopping import Stopped, StopSignal
from sacglam.snapshot import restore
from sacglam.tools.profile.cost import Cost, cost_of, forwards_per_step, layer_matrices
from sacglam.tools.profile.counting import Pass, Tally
from sacglam.tools.profile.meter import Length, Meter
from sacglam.tools.profile.phases import OTHER, ordered
from sacglam.tools.profile.rate import matmul_rate
from sacglam.tools.profile.recorder import Recorder, synchroniser
from sacglam.tools.profile.result import Floor, Profile, Work
from sacglam.tools.profile.trace import Interval, Timeline
from sacglam.training import Training

_NEVER = 2**62  # environment steps


@dataclass(frozen=True)
class Source:
    """What to profile: a configuration, or that of a run, which goes on from its newest checkpoint."""

    label: str
    config: Config
    run: RunDirectory | None = None


def measure(source: Source, length: Length, display: Display) -> tuple[Profile, Timeline]:
    """Run the loop of `source` for some intervals and tell where their time went. Writes nothing.

    Raises:
        ProfileError: it was interrupted.
        SacglamError: as for a training.
    """
    config = _steady(resolve(source.config))
    recorder = Recorder(synchroniser(config.device))
    tally = Tally(recorder)
    parts = build(config, display.note, tally.observe)
    with StopSignal() as stop, closing(parts):
        ranks = config.learners.count > 0
        meter = Meter(parts, tally, stop, length, label=source.label, display=display, ranks=ranks)
        _run(source, config, parts, meter, recorder, stop)
    work: dict[str, Work] = {}
    floor = cost = None
    if tally.lm:  # else the model is in other processes
        display.stage(f"{source.label}: measuring matrix products", 1)
        first, last = meter.marks[meter.first].passes, meter.marks[-1].passes
        cost = cost_of(tally.lm)
        work, floor = _counted(tally.lm, cost, tally.passes[first:last], config, recorder)
        display.advance(1)
    return _profile(source.label, config, meter, work, floor), _timeline(source.label, meter, tally, recorder, cost)


def _steady(config: Config) -> Config:
    """No evaluation, checkpoint, sample or end, and the actor learns from the first update, as later in a run."""
    return config.model_copy(
        update={
            "steps": _NEVER,
            "log_every_steps": _NEVER,
            "evaluation": config.evaluation.model_copy(update={"every_steps": 0}),
            "checkpoint": config.checkpoint.model_copy(update={"every_steps": _NEVER}),
            "tracking": config.tracking.model_copy(update={"samples_every_steps": 0, "aim": False}),
            "algo": config.algo.model_copy(update={"warmup_updates": 0} if config.algo.type == "sac" else {}),
        }
    )


def _run(source: Source, config: Config, parts: Parts, meter: Meter, recorder: Recorder, stop: StopSignal) -> None:
    """The training's loop, until the meter has enough."""
    if source.run and checkpoint.steps(source.run.checkpoints):
        folder, found = checkpoint.load_newest(source.run.checkpoints, meter.note)
        restore(parts, MetricsWindow(), found)
        meter.note(f"{source.label}: going on from {folder}")
    parts.clock.watch(recorder)
    training = Training(RunDirectory(Path(source.label)), config, meter, parts)
    try:
        training.start_up(stop)
        meter.begin()
        training.loop(stop)
    except Stopped:
        pass
    if not meter.complete:
        raise ProfileError(f"the profile of {source.label} was interrupted; nothing was written")


def _counted(
    lm: PackedLM, cost: Cost, passes: Sequence[Pass], config: Config, recorder: Recorder
) -> tuple[dict[str, Work], Floor]:
    """What went through the model by phase, and the floor beneath it."""
    by_phase: dict[str, list[Pass]] = defaultdict(list)
    for each in passes:
        by_phase[each.phase].append(each)
    scored = [query for each in by_phase["scoring"] for query in each.queries]
    floor = Floor(
        forwards=forwards_per_step(config),
        state_flop=cost.plain().forward(cost.extent(scored)) / len(scored),
        matmul_rate=matmul_rate(layer_matrices(lm), recorder.synchronise),
    )
    return {phase: _work(by_phase[phase], cost) for phase in ordered(by_phase)}, floor


def _work(passes: Sequence[Pass], cost: Cost) -> Work:
    tokens = flop = 0
    for each in passes:
        of = cost.extent(each.queries)
        tokens += of.tokens
        flop += cost.forward(of) + (cost.backward(of) if each.gradient else 0)
    return Work(tokens, sum(each.computed for each in passes), flop)


def _profile(label: str, config: Config, meter: Meter, work: Mapping[str, Work], floor: Floor | None) -> Profile:
    start, end = meter.marks[meter.first], meter.marks[-1]
    intervals = len(meter.marks) - 1 - meter.first
    wall = end.time - start.time
    seconds = _difference(start.seconds, end.seconds)
    seconds[OTHER] = wall - sum(seconds.values())
    return Profile(
        label=label,
        algorithm=config.algo.type,
        device=config.device,
        threads=config.threads,
        warm_up_intervals=meter.first,
        intervals=intervals,
        env_steps=intervals * config.algo.update_interval,
        updates=end.updates - start.updates,
        wall_seconds=wall,
        cpu_seconds=end.cpu - start.cpu,
        seconds={name: seconds[name] for name in ordered(seconds)},
        rank_seconds_per_update=_rank_seconds(meter),
        work=work,
        floor=floor,
    )


def _rank_seconds(meter: Meter) -> dict[str, float]:
    """Of one update, by the first learner rank's clock; nothing where the loop's own counts updates."""
    if not meter.rank_marks:
        return {}
    start, end = meter.rank_marks
    seconds = _difference(start.seconds, end.seconds)
    return {name: each / (end.updates - start.updates) for name, each in seconds.items()}


def _difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: after[name] - before.get(name, 0.0) for name in ordered(after)}


def _timeline(label: str, meter: Meter, tally: Tally, recorder: Recorder, cost: Cost | None) -> Timeline:
    intervals = []
    for number, (start, end) in enumerate(pairwise(meter.marks), start=1):
        figures: dict[str, Any] = {"updates": end.updates - start.updates}
        if cost:
            seen = cost.extent(query for each in tally.passes[start.passes : end.passes] for query in each.queries)
            figures["tokens per second"] = seen.tokens / (end.time - start.time)
        kind = "interval" if number > meter.first else "warm-up"
        intervals.append(Interval(f"{kind} {number}", start.time, end.time - start.time, figures))
    began = meter.marks[0].time
    return Timeline(label, intervals, [span for span in recorder.spans if span.start >= began])
