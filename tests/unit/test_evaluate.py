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


@pytest.mark.parametrize(("planner", "spl"), [(True, 0.0), (False, None)])
def test_spl_of_failures_is_0_with_a_planner_and_unknown_without(planner: bool, spl: float | None) -> None:
    found = evaluate(lambda: Hopeless(planner), UniformScorer(), greedy, episodes=3, rng=np.random.default_rng(0))
    assert (found.success["overall"], found.spl) == (0.0, spl)
