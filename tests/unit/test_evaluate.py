"""What an evaluation says of its episodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sacglam.envs import TextEnv
from sacglam.evaluate import evaluate
from sacglam.policy import greedy
from sacglam.scoring.base import UniformScorer
from sacglam.types import Observation, Step


class Hopeless(TextEnv):
    """Every episode fails at once."""

    def __init__(self, planner: bool) -> None:
        self._planner = planner

    def goals(self, split: str) -> Sequence[str]:
        return ("Win",)

    def goal_type(self, goal: str) -> str:
        return "win"

    def reset(self, goal: str, seed: int) -> Observation:
        return Observation("", ("Try",))

    def step(self, action: int) -> Step:
        return Step(Observation("", ("Try",)), 0.0, (), False, True)

    def optimal_length(self) -> int | None:
        return 3 if self._planner else None


class Stubborn(Hopeless):
    """Five steps with two actions; the goal `Win` is never achieved, `Draw` at once."""

    def goals(self, split: str) -> Sequence[str]:
        return ("Win", "Draw")

    def reset(self, goal: str, seed: int) -> Observation:
        self._goal, self._steps = goal, 0
        return Observation("", ("Try", "Wait"))

    def step(self, action: int) -> Step:
        self._steps += 1
        won = self._goal == "Draw"
        seen = Observation("", ("Try", "Wait") if self._steps < 3 else ("Go", "Wait"))
        return Step(seen, float(won), ("Draw",) * won, won, not won and self._steps == 5)


def test_which_action_repeats_in_failures() -> None:
    # Try, Try, Try, Go, Go: three of the four after the first repeat the one before, Try twice and Go once.
    found = evaluate(lambda: Stubborn(False), UniformScorer(), greedy, episodes=8, rng=np.random.default_rng(0))
    assert 0 < found.success["overall"] < 1
    assert found.repeated == (0.75, "Try")
    hopeless = evaluate(lambda: Hopeless(False), UniformScorer(), greedy, episodes=8, rng=np.random.default_rng(0))
    assert hopeless.repeated == (0.0, "")


@pytest.mark.parametrize(("planner", "spl"), [(True, 0.0), (False, None)])
def test_spl_of_failures_is_0_with_a_planner_and_unknown_without(planner: bool, spl: float | None) -> None:
    found = evaluate(lambda: Hopeless(planner), UniformScorer(), greedy, episodes=3, rng=np.random.default_rng(0))
    assert (found.success["overall"], found.spl) == (0.0, spl)
