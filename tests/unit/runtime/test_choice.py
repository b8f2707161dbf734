"""Which engine `auto` takes, from engines that are slow, fast or broken."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest

from sacglam.config import EnginesConfig
from sacglam.errors import EngineError
from sacglam.runtime.choice import PASSES, EngineChoice, EngineKind, RecordingScorer, Workload, choose_engine
from sacglam.runtime.engines import EngineGroup
from sacglam.runtime.group import Done, LocalWorker
from sacglam.scoring.base import Engine, UniformScorer
from sacglam.types import Adapter, LogPolicy, Query

STATES = [[Query(f"pass {number}", ("left", "right"))] for number in range(PASSES)]
SLOW_S = 0.05


class Timed(UniformScorer, Engine):
    """An engine that takes its time, and keeps what it was asked, in order."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked: list[str] = []

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        self.asked += [query.prompt for query in queries]
        time.sleep(self.seconds if queries else 0)
        return super().log_policy(queries)

    def load(self, adapter: Adapter) -> None:
        self.asked.append("load")
        self.version = adapter.version


class Broken(LocalWorker):
    """A worker whose engine could not start."""

    def submit(self, method: str, *args: object, reply: bool = True) -> Done:
        raise EngineError("it lacks memory")


class Bench:
    """Starts engines of both kinds, and keeps them."""

    def __init__(self, packed: float, vllm: float | None) -> None:
        self.seconds = {"packed": packed, "vllm": vllm}
        self.engines: list[tuple[EngineKind, Timed]] = []
        self.notes: list[str] = []
        self.group = EngineGroup(self.start("packed"), EnginesConfig(count=1), self.notes.append)

    def start(self, kind: EngineKind) -> Callable[[int], LocalWorker]:
        def start(index: int) -> LocalWorker:
            seconds = self.seconds[kind]
            self.engines.append((kind, Timed(seconds or 0.0)))
            return Broken(None) if seconds is None else LocalWorker(self.engines[-1][1])

        return start

    def choose(self, intervals: int) -> EngineChoice:
        work = Workload(Adapter(3, {}), STATES, passes=2, intervals=intervals)
        return choose_engine(self.group, self.start, work, self.notes.append)

    @property
    def started(self) -> list[EngineKind]:
        return [kind for kind, _ in self.engines]


def test_a_short_run_keeps_packed_engines_after_two_passes() -> None:
    bench = Bench(packed=0.0, vllm=0.0)
    choice = bench.choose(intervals=100)
    assert choice.kind == "packed"
    assert bench.started == ["packed"]
    assert bench.engines[0][1].asked == ["load", "pass 0", "load", "pass 1"]
    assert "would not pay" in bench.notes[0]


def test_a_long_run_takes_vllm_where_it_is_faster() -> None:
    bench = Bench(packed=SLOW_S, vllm=0.0)
    choice = bench.choose(intervals=1_000_000)
    assert choice.kind == "vllm"
    assert bench.started == ["packed", "vllm"]
    assert choice.seconds["packed"] >= 2 * SLOW_S > choice.seconds["vllm"]  # two passes an interval
    assert "engines: vllm;" in bench.notes[0]


def test_a_long_run_returns_to_packed_engines_where_vllm_is_slower() -> None:
    bench = Bench(packed=0.001, vllm=SLOW_S)
    choice = bench.choose(intervals=1_000_000)
    assert choice.kind == "packed"
    assert bench.started == ["packed", "vllm", "packed"]
    assert set(choice.seconds) == {"packed", "vllm"}


def test_each_pass_has_other_states_and_an_adapter_of_its_own() -> None:
    bench = Bench(packed=0.001, vllm=0.0)
    bench.choose(intervals=1_000_000)
    expected = [text for number in range(PASSES) for text in ("load", f"pass {number}")]
    assert bench.engines[1][1].asked == expected


def test_vllm_that_cannot_start_leaves_packed_engines_and_says_why() -> None:
    bench = Bench(packed=0.001, vllm=None)
    choice = bench.choose(intervals=1_000_000)
    assert choice.kind == "packed"
    assert list(choice.seconds) == ["packed"]
    assert "it lacks memory" in bench.notes[0]
    bench.group.load(Adapter(4, {}))
    assert len(bench.group.log_policy(STATES[0])) == 1


def test_the_recorded_passes_are_those_that_were_scored() -> None:
    scorer = RecordingScorer()
    assert [len(policy) for policy in scorer.log_policy(STATES[0])] == [2]
    scorer.log_policy(STATES[1])
    assert scorer.passes == STATES[:2]


@pytest.mark.parametrize(("passes", "expected"), [(1, 0.05), (3, 0.15)])
def test_an_interval_has_one_hand_off_and_its_passes(passes: int, expected: float) -> None:
    bench = Bench(packed=0.05, vllm=None)
    found = Workload(Adapter(3, {}), STATES, passes=passes, intervals=1).interval_seconds(bench.group)
    assert found >= expected
