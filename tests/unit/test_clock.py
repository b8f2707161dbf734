"""Seconds by phase, and in words."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest
from typing_extensions import override

from sacglam.clock import PhaseClock, Watcher, duration


def test_phases_add_up_and_the_time_between_them_does_not_count() -> None:
    clock, start = PhaseClock(), time.perf_counter()
    assert clock.seconds == {}
    for _ in range(2):
        with clock.phase("scoring"):
            time.sleep(0.02)
        time.sleep(0.05)
    with clock.phase("environment"):
        time.sleep(0.01)
    assert list(clock.seconds) == ["scoring", "environment"]
    assert clock.seconds["scoring"] >= 0.04
    assert clock.seconds["environment"] >= 0.01
    assert sum(clock.seconds.values()) <= time.perf_counter() - start - 0.1


def test_a_phase_that_fails_is_counted() -> None:
    clock = PhaseClock()
    with pytest.raises(KeyError), clock.phase("scoring"):
        _fail_after(0.02)
    assert clock.seconds["scoring"] >= 0.02


def test_it_resumes_from_restored_seconds() -> None:
    clock, saved = PhaseClock(), {"scoring": 5.0}
    clock.restore(saved)
    with clock.phase("scoring"):
        time.sleep(0.01)
    assert clock.seconds["scoring"] >= 5.01
    assert saved == {"scoring": 5.0}, "the caller's dictionary was changed"


@dataclass
class SlowDevice(Watcher):
    """Takes a moment to finish at each boundary, and keeps all spans."""

    boundaries: list[str] = field(default_factory=list)
    spans: list[tuple[str, float, float]] = field(default_factory=list)

    @override
    def boundary(self, phase: str) -> None:
        time.sleep(0.02)
        self.boundaries.append(phase)

    @override
    def span(self, phase: str, start: float, seconds: float) -> None:
        self.spans.append((phase, start, seconds))


def test_what_a_device_still_does_counts_in_its_phase() -> None:
    clock, device = PhaseClock(), SlowDevice()
    with clock.phase("environment"):
        pass  # nobody watches yet
    clock.watch(device)
    begun = time.perf_counter()
    with clock.phase("scoring"):
        pass
    with pytest.raises(KeyError), clock.phase("forward"):
        raise KeyError("model")
    ended = time.perf_counter()
    assert device.boundaries == ["scoring", "scoring", "forward", "forward"]
    (_, first, scoring), (_, second, forward) = device.spans
    assert [name for name, _, _ in device.spans] == ["scoring", "forward"]
    assert begun + 0.02 <= first <= first + scoring <= second - 0.02
    assert second + forward <= ended
    assert min(scoring, forward) >= 0.02
    assert (clock.seconds["scoring"], clock.seconds["forward"]) == (scoring, forward)


def test_a_duration_is_given_in_the_unit_that_fits() -> None:
    given = (3.21, 45.4, 99.4, 100, 600, 7_500, 360_000)
    assert [duration(seconds) for seconds in given] == [
        "3.2 s", "45 s", "99 s", "2 min", "10 min", "2 h 05 min", "100 h 00 min"
    ]  # fmt: skip


def _fail_after(seconds: float) -> None:
    time.sleep(seconds)
    raise KeyError("scorer")
