"""The values that travel: frozen, comparable, picklable; and what an episode says of itself."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from sacglam.types import Decision, Episode, Observation, Query, Step, Window

S = [Observation(f"state {t}", ("left", "right")) for t in range(3)]
EPISODE = Episode(
    goal="b",
    start=S[0],
    decisions=(Decision(0, -0.5, 3), Decision(1, -0.25, 4)),
    steps=(Step(S[1], 0.0, ("a",), False, False), Step(S[2], 1.0, ("c", "b"), True, False)),
    seed=7,
)
WINDOW = Window("b", (S[0], S[2]), (1,), (0.5,), terminated=False, source="hindsight", return_after=0.25)
VALUES = [S[0], EPISODE.steps[1], EPISODE.decisions[0], EPISODE, WINDOW, Query("prompt", (" left",))]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_are_frozen_hashable_and_survive_a_pickle(value: Any) -> None:
    again = pickle.loads(pickle.dumps(value))
    assert again == value
    assert hash(again) == hash(value)
    with pytest.raises(FrozenInstanceError):
        setattr(value, next(iter(type(value).__dataclass_fields__)), "other")


def test_the_observation_of_a_step_is_the_one_it_was_taken_in() -> None:
    assert [EPISODE.observation(t) for t in range(3)] == S


@pytest.mark.parametrize(("goal", "success"), [("a", True), ("b", True), ("c", True), ("d", False), ("", False)])
def test_success_is_having_achieved_the_own_goal_at_any_step(goal: str, success: bool) -> None:
    assert replace(EPISODE, goal=goal).success is success


def test_an_episode_without_steps_has_no_success() -> None:
    assert not replace(EPISODE, decisions=(), steps=()).success


@pytest.mark.slow
def test_importing_loads_no_engine() -> None:
    """vLLM, DeepSpeed, Ray and Aim are imported by the processes alone that use them."""
    code = "import sys, sacglam.training, sacglam.learner.deepspeed, sacglam.scoring.vllm.engine, sacglam.runtime.ray;"
    code += "print([m for m in ('vllm', 'deepspeed', 'ray', 'aim') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.strip() == "[]"
