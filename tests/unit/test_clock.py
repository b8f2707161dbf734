"""Seconds by phase, on a clock that the test winds itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from sacglam.clock import PhaseClock, duration

Wind = Callable[[float], None]


@pytest.fixture
def wind(monkeypatch: pytest.MonkeyPatch) -> Wind:
    """Lets time pass."""
    now = [100.0]

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return pass_time


def test_phases_add_up_and_the_time_between_them_does_not_count(wind: Wind) -> None:
    phases = PhaseClock()
    assert phases.seconds == {}
    for seconds in (1.0, 2.5):
        with phases.phase("scoring"):
            wind(seconds)
        wind(10.0)
    with phases.phase("environment"):
        wind(0.25)
    assert phases.seconds == {"scoring": 3.5, "environment": 0.25}


def test_a_phase_that_fails_is_counted(wind: Wind) -> None:
    phases = PhaseClock()

    @phases.phase("scoring")
    def fail() -> None:
        wind(2.0)
        raise KeyError("scorer")

    with pytest.raises(KeyError):
        fail()
    assert phases.seconds == {"scoring": 2.0}


def test_it_goes_on_from_restored_seconds(wind: Wind) -> None:
    phases = PhaseClock()
    saved = {"scoring": 5.0}
    phases.restore(saved)
    with phases.phase("scoring"):
        wind(1.0)
    assert phases.seconds == {"scoring": 6.0}
    assert saved == {"scoring": 5.0}, "the caller's dictionary was changed"


def test_what_it_tells_is_a_copy(wind: Wind) -> None:
    phases = PhaseClock()
    phases.seconds["scoring"] = 1.0
    assert phases.seconds == {}


@dataclass
class Diary:
    """A watcher that keeps all it is told, and lets a second pass at each border, as a device would."""

    wind: Wind
    lines: list[tuple[object, ...]] = field(default_factory=list)

    def border(self, phase: str) -> None:
        self.wind(1.0)
        self.lines.append(("border", phase))

    def span(self, phase: str, start: float, seconds: float) -> None:
        self.lines.append(("span", phase, start, seconds))


def test_a_watcher_is_told_of_each_phase_and_what_a_device_still_does_counts_in_it(wind: Wind) -> None:
    phases = PhaseClock()
    with phases.phase("scoring"):
        wind(4.0)  # nobody watches yet
    diary = Diary(wind)
    phases.watch(diary)
    with phases.phase("scoring"):
        wind(2.0)
    with pytest.raises(KeyError), phases.phase("forward"):
        raise KeyError("model")
    assert diary.lines == [
        ("border", "scoring"),
        ("border", "scoring"),
        ("span", "scoring", 105.0, 3.0),
        ("border", "forward"),
        ("border", "forward"),
        ("span", "forward", 109.0, 1.0),
    ]
    assert phases.seconds == {"scoring": 7.0, "forward": 1.0}


def test_a_duration_is_given_in_the_unit_that_fits() -> None:
    given = (3.21, 45.4, 99.4, 100, 600, 7_500, 360_000)
    assert [duration(seconds) for seconds in given] == [
        "3.2 s", "45 s", "99 s", "2 min", "10 min", "2 h 05 min", "100 h 00 min"
    ]  # fmt: skip
