"""`engines.type: auto`: the faster kind of engine for a run, by a short measurement at its start."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from typing_extensions import override

from sacglam.errors import SacglamError
from sacglam.runtime.engines import EngineGroup
from sacglam.runtime.group import Tick, Worker
from sacglam.scoring.base import UniformScorer
from sacglam.types import Adapter, LogPolicy, Query

EngineKind = Literal["packed", "vllm"]

PASSES = 5
"""Scoring passes of a measurement; the first one warms up."""
_WORTH_S = 600.0  # vLLM takes half a minute to start on a CPU and minutes on a GPU: of less it could not save much
_LIMIT_S = 30.0  # no further pass after so many seconds: with large models on a CPU one takes a minute


class RecordingScorer(UniformScorer):
    """The random policy, which keeps the states of each scoring pass."""

    def __init__(self) -> None:
        self.passes: list[Sequence[Query]] = []

    @override
    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        self.passes.append(queries)
        return super().log_policy(queries)


@dataclass(frozen=True)
class Workload:
    """What a run asks of its engines: in each of its `intervals` an adapter to load, then `passes` scoring passes.

    `states` are those of the run's first passes, different ones in each.
    """

    adapter: Adapter
    states: Sequence[Sequence[Query]]
    passes: int
    intervals: int

    def interval_seconds(self, engines: EngineGroup, measured: int = PASSES - 1) -> float:
        """Seconds of an interval, from the medians of `measured` loads and passes after one to warm up.

        Each pass follows a load, so that an engine's prefix cache is as empty as it is after a hand-off.
        """
        loads: list[float] = []
        passes: list[float] = []
        for states in self.states[: measured + 1]:
            started = time.perf_counter()
            engines.load(self.adapter)
            loaded = time.perf_counter()
            engines.log_policy(states)
            loads.append(loaded - started)
            passes.append(time.perf_counter() - loaded)
            if len(passes) > 1 and sum(loads) + sum(passes) > _LIMIT_S:
                break
        return median(loads[1:]) + self.passes * median(passes[1:])


@dataclass(frozen=True)
class EngineChoice:
    """The kind of engine that serves a run, and the measured seconds of an interval by kind."""

    kind: EngineKind
    seconds: dict[EngineKind, float]


def choose_engine(
    engines: EngineGroup,
    start: Callable[[EngineKind], Callable[[int], Worker]],
    work: Workload,
    note: Callable[[str], None],
    tick: Tick = lambda: None,
) -> EngineChoice:
    """Leave the faster kind running in `engines`, where packed ones are ready; `start(kind)` is how to start others.

    vLLM is tried only where the packed scoring of the whole run would take ten minutes; two passes decide that.
    """
    seconds: dict[EngineKind, float] = {"packed": work.interval_seconds(engines, 1)}
    total = seconds["packed"] * work.intervals
    if total < _WORTH_S:
        note(f"engines: packed, which score this run in {total:.0f} s; starting vLLM to compare would not pay")
        return EngineChoice("packed", seconds)
    seconds["packed"] = work.interval_seconds(engines)
    engines.restart(start("vllm"))
    try:
        engines.wait_ready(tick)
        seconds["vllm"] = work.interval_seconds(engines)
    except SacglamError as error:
        note(f"engines: vLLM was tried, but {error}")
    kind = min(seconds, key=lambda kind: seconds[kind])
    if kind == "packed":
        engines.restart(start(kind))
        engines.wait_ready(tick)
    measured = ", ".join(f"{each} {taken:.3g} s" for each, taken in seconds.items())
    note(f"engines: {kind}; an interval's hand-off and scoring take {measured}")
    return EngineChoice(kind, seconds)
