"""The window of metrics, with numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from sacglam.runs.progress import MetricsAccumulator, Progress
from sacglam.types import Decision, Episode, Observation, Step


def episode(success: bool, *choices: tuple[int, float]) -> Episode:
    """Steps of so many actions each, with -log pi of the one taken in units of ln 2; the first achieves `other`."""
    seen = [Observation("here", tuple(f"Do {i}" for i in range(actions))) for actions, _ in choices]
    last = len(choices) - 1
    steps = [
        Step(seen[min(t + 1, last)], 0.0, ("other",) * (t == 0) + ("win",) * (success and t == last), t == last, False)
        for t in range(len(choices))
    ]
    decisions = tuple(Decision(0, -nats * math.log(2), 0) for _, nats in choices)
    return Episode("win", seen[0], decisions, tuple(steps), 0)


def test_what_a_window_says_of_the_episodes_that_ended() -> None:
    window = MetricsAccumulator()
    # The random policy has ln 2 + ln 4 = 3 ln 2 in the first episode, ln 2 in the second, no choice in the third.
    window.add_episodes([episode(True, (2, 1.0), (4, 0.5)), episode(False, (2, 0.0)), episode(False, (1, 0.0))], str)
    assert window.flush() == pytest.approx(
        {
            "success": 1 / 3,
            "success/win": 1 / 3,
            "goal_share/win": 1.0,
            "episode_success": 1 / 3,
            "episode_length": 4 / 3,
            "goals_achieved": 4 / 3,
            "entropy_share": (0.5 + 0.0) / 2,
        }
    )
    window.add_episodes([episode(True, (2, 1.0)), replace(episode(False, (2, 1.0)), goal="rise")] * 2, str)
    found = window.flush()
    assert (found["goal_share/win"], found["goal_share/rise"]) == (0.5, 0.5)
    window.add_episodes([episode(True, (2, 1.0))], str)
    found = window.flush()
    assert (found["success"], found["episode_success"]) == (0.5, 1.0)  # of the last 200 episodes, and of these


@pytest.mark.parametrize(
    "change",
    [{"env_steps": -1}, {"updates": 1.5}, {"episodes": "3"}, {"seconds": -0.1}, {"cpu_seconds": math.nan}, {"x": 1}],
)
def test_counters_that_no_run_has_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        Progress(**change)


@pytest.mark.parametrize("change", [{"sums": {"q": "1"}}, {"counts": {"q": 0}}, {"counts": {}}, {"recent": [1]}])
def test_a_window_that_no_run_saved_is_refused(change: dict[str, Any]) -> None:
    saved = {"sums": {"q": 3.0}, "counts": {"q": 2}, "recent": [True]}
    assert MetricsAccumulator(**saved).flush() == {"success": 1.0, "q": 1.5}
    with pytest.raises(ValueError, match=r"window|sums|counts|recent"):
        MetricsAccumulator(**{**saved, **change})
