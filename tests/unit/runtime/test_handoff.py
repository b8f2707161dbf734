"""When the parity gate compares, what it computes and what it reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from sacglam.build import PARITY_TOLERANCES
from sacglam.clock import PhaseClock
from sacglam.errors import ParityError
from sacglam.runtime.engines import EngineGroup
from sacglam.runtime.group import Worker
from sacglam.runtime.handoff import Handoff, total_variation
from sacglam.scoring.base import Engine, UniformScorer
from sacglam.types import Adapter, LogPolicy, Query

QUERY = Query("Goal: x\nAction:", (" left", " right"))


def log(*probabilities: float) -> LogPolicy:
    return np.log(np.array(probabilities, dtype=np.float32))


class Uniform(UniformScorer, Engine):
    def load(self, adapter: Adapter) -> None:
        self.version = adapter.version


class Fixed(Engine):
    """Has a policy of its own for each state."""

    def __init__(self, policies: Sequence[LogPolicy]) -> None:
        self.policies, self.version = list(policies), 0

    def load(self, adapter: Adapter) -> None:
        self.version = adapter.version

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        return self.policies[: len(queries)]


def handoff(
    tolerance: float = 1e-4, every: int = 3, engine: Engine | None = None, queries: Sequence[Query] = (QUERY,)
) -> Handoff:
    engines = EngineGroup(
        lambda index: Worker(engine or Uniform()),
        count=2,
        timeout_s=1,
        note=lambda text: None,
    )
    return Handoff(engines, queries, tolerance=tolerance, every=every, clock=PhaseClock())


def test_total_variation_by_hand() -> None:
    # (|0.5 - 0.2| + |0.3 - 0.3| + |0.2 - 0.5|) / 2
    assert total_variation(log(0.5, 0.3, 0.2), log(0.2, 0.3, 0.5)) == pytest.approx(0.3)
    assert total_variation(log(0.5, 0.5), log(0.5, 0.5)) == 0


def test_checks_go_by_the_count_of_updates() -> None:
    link = handoff(every=6)
    assert [len(link.probe(updates)) for updates in range(0, 14, 2)] == [1, 0, 0, 1, 0, 0, 1]


def test_checks_count_from_the_initial_updates() -> None:
    link = replace(handoff(every=6), first=170)
    assert [updates for updates in range(170, 184, 2) if link.probe(updates)] == [170, 176, 182]


def test_equal_policies_pass_and_the_gap_is_reported() -> None:
    assert handoff().deliver(Adapter(1, {}, [log(0.5, 0.5)])) == {"parity_gap": 0.0}


def test_an_adapter_without_a_probe_is_loaded_and_not_checked() -> None:
    assert handoff().deliver(Adapter(1, {}, [])) == {}


def test_a_gap_beyond_the_tolerance_stops_with_both_tables() -> None:
    with pytest.raises(ParityError) as raised:
        handoff().deliver(Adapter(5, {}, [log(0.7, 0.3)]))
    message = str(raised.value)
    assert (
        "differ by 0.2 in total variation (mean over 1 states) at adapter version 5, beyond the tolerance 0.0001"
        in message
    )
    assert "0.700000    0.500000  left" in message
    assert "0.300000    0.500000  right" in message


def test_a_policy_that_is_no_number_never_passes() -> None:
    with pytest.raises(ParityError):
        handoff(tolerance=1.0).deliver(Adapter(1, {}, [np.array([np.nan, 0.0], dtype=np.float32)]))


def probe(rng: np.random.Generator, noise: float) -> tuple[list[LogPolicy], list[LogPolicy]]:
    """Policies at eight states, as they are and with every token off by about `noise` nats, some by far more."""
    exact, rounded = [], []
    for actions in rng.integers(3, 11, size=8):
        scores = rng.normal(0.0, 1.0, actions)
        gaps = rng.standard_t(3, size=(actions, 5)).sum(axis=1) * noise  # of five tokens each
        for found, logits in ((exact, scores), (rounded, scores + gaps)):
            found.append((logits - np.log(np.exp(logits).sum())).astype(np.float32))
    return exact, rounded


def test_in_bfloat16_rounding_passes_and_another_states_policies_do_not() -> None:
    rng, tolerance = np.random.default_rng(0), PARITY_TOLERANCES["bfloat16"]
    worst = 0.0
    for _ in range(50):
        exact, rounded = probe(rng, noise=0.05)  # about 0.5 nats in the worst token
        queries = [Query("Goal: x\nAction:", (" left",) * len(policy)) for policy in exact]
        worst = max(worst, *map(total_variation, exact, rounded))
        link = handoff(tolerance, engine=Fixed(rounded), queries=queries)
        assert 0 < link.deliver(Adapter(1, {}, exact))["parity_gap"] < tolerance
        link = handoff(tolerance, engine=Fixed([np.roll(policy, 1) for policy in exact]), queries=queries)
        with pytest.raises(ParityError):
            link.deliver(Adapter(1, {}, exact))
    assert worst > tolerance, "a bound on single states would have ended the run"
