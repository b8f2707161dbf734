"""What an evaluation says of its episodes, and what sample episodes hold."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sacglam.clock import PhaseClock
from sacglam.config import load
from sacglam.envs import TextEnv, make
from sacglam.evaluate import Evaluations, evaluate
from sacglam.policy import greedy
from sacglam.runs.display import Display
from sacglam.scoring.base import Scorer, UniformScorer
from sacglam.types import Evaluation, LogPolicy, Observation, Query, Step


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


class Walk(Hopeless):
    """Always the same action, in three places in turn, and then back in the first: one step of four repeats another."""

    def reset(self, goal: str, seed: int) -> Observation:
        self._steps = 0
        return Observation("place 0", ("Go on",))

    def step(self, action: int) -> Step:
        self._steps += 1
        return Step(Observation(f"place {self._steps % 3}", ("Go on",)), 0.0, (), False, self._steps == 4)


def test_an_action_repeats_only_after_the_same_text() -> None:
    found = evaluate(lambda: Walk(False), UniformScorer(), greedy, episodes=4, rng=np.random.default_rng(0))
    assert found.repeated == (0.25, "Go on")


class Paid(Hopeless):
    """Returns are 1 and -2 in turn."""

    paid = 0

    def step(self, action: int) -> Step:
        Paid.paid += 1
        return Step(Observation("", ("Try",)), (-2.0, 1.0)[Paid.paid % 2], (), False, True)


def test_mean_return_and_its_standard_error_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Paid, "paid", 0)

    def found(episodes: int) -> Evaluation:
        return evaluate(
            lambda: Paid(False), UniformScorer(), greedy, episodes=episodes, rng=np.random.default_rng(0), plan=False
        )

    # Two of each: the mean is -0.5, the squared distances from it sum to 4 * 2.25, and sqrt(9 / 3 / 4) = 0.866.
    assert (found(4).mean_return, found(4).return_error) == (-0.5, pytest.approx(0.8660254))
    assert found(1).return_error is None


def test_which_action_repeats_in_failures() -> None:
    # Try, Try, Try, Go, Go, always after the same text: three of the five are taken again, Try twice and Go once.
    found = evaluate(lambda: Stubborn(False), UniformScorer(), greedy, episodes=8, rng=np.random.default_rng(0))
    assert 0 < found.success["overall"] < 1
    assert found.repeated == (0.6, "Try")
    hopeless = evaluate(lambda: Hopeless(False), UniformScorer(), greedy, episodes=8, rng=np.random.default_rng(0))
    assert hopeless.repeated == (0.0, "")


@pytest.mark.parametrize(("planner", "spl"), [(True, 0.0), (False, None)])
def test_spl_of_failures_is_0_with_a_planner_and_unknown_without(planner: bool, spl: float | None) -> None:
    found = evaluate(lambda: Hopeless(planner), UniformScorer(), greedy, episodes=3, rng=np.random.default_rng(0))
    assert (found.success["overall"], found.spl) == (0.0, spl)


class Partly(Hopeless):
    """Its planner knows no way from half of the starts."""

    def reset(self, goal: str, seed: int) -> Observation:
        self._planner = seed % 2 == 0
        return super().reset(goal, seed)


def test_spl_needs_no_plan_of_the_first_episode() -> None:
    found = list[float | None]()
    for seed in range(8):
        rng = np.random.default_rng(seed)
        found.append(evaluate(lambda: Partly(True), UniformScorer(), greedy, episodes=20, rng=rng).spl)
    assert found == [0.0] * 8


class Easy(Hopeless):
    """Every episode succeeds at once; counts how often it is reset."""

    resets = 0

    def reset(self, goal: str, seed: int) -> Observation:
        Easy.resets += 1
        return super().reset(goal, seed)

    def step(self, action: int) -> Step:
        return Step(Observation("", ("Try",)), 1.0, ("Win",), True, False)


@pytest.mark.parametrize(("plan", "resets"), [(True, 9), (False, 8)])
def test_without_a_planner_one_successful_episode_is_reset_for_it_at_most(
    plan: bool, resets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Easy, "resets", 0)
    rng = np.random.default_rng(0)
    assert evaluate(lambda: Easy(False), UniformScorer(), greedy, episodes=8, rng=rng, plan=plan).spl is None
    assert Easy.resets == resets


class There(Easy):
    """Its goals hold from the start; a step says so."""

    def optimal_length(self) -> int:
        return 0


def test_no_step_beats_the_one_step_that_an_episode_has() -> None:
    found = evaluate(lambda: There(True), UniformScorer(), greedy, episodes=3, rng=np.random.default_rng(0))
    assert (found.success["overall"], found.spl) == (1.0, 1.0)


@pytest.mark.parametrize("repeats", [True, False])
def test_spl_needs_an_environment_that_repeats_itself(repeats: bool) -> None:
    parts: Any = None
    config = load(None, ["env.name=bitflip", f"env.repeats={repeats}", "evaluation.episodes=2"])
    assert (Evaluations(config, parts, Display(), lambda: None).random().spl is not None) == repeats


class Firmly:
    """Prefers later actions: pi is proportional to 1, 2, 3, ..."""

    version = 0

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        return [np.log(np.arange(1, len(q.actions) + 1, dtype=np.float32) / _sum(len(q.actions))) for q in queries]


def _sum(n: int) -> float:
    return n * (n + 1) / 2


def lengths(queries: Sequence[Query]) -> list[npt.NDArray[np.float32]]:
    """A critic that values an action by the length of its text."""
    return [np.array([len(action.strip()) for action in q.actions], dtype=np.float32) for q in queries]


def sampled(env: str, scorer: Scorer, seed: int, episodes: int) -> list[dict[str, Any]]:
    parts: Any = SimpleNamespace(scorer=scorer, learners=SimpleNamespace(q_values=lengths), clock=PhaseClock())
    config = load(None, [f"env.name={env}", f"seed={seed}"])
    return Evaluations(config, parts, Display(), lambda: None).sample(episodes, env_steps=0)


def test_each_step_has_its_actions_probabilities_and_values() -> None:
    env = make("playground_simple")
    episodes = sampled("playground_simple", Firmly(), 3, 3)
    assert len(episodes) == 3
    for episode in episodes:
        assert episode["goal_type"] == env.goal_type(episode["goal"])
        assert episode["success"] == any(episode["goal"] in step["achieved"] for step in episode["steps"])
        for step in episode["steps"]:
            n = len(step["actions"])
            assert step["probabilities"] == pytest.approx([i / _sum(n) for i in range(1, n + 1)], abs=1e-4)
            assert step["q"] == [len(action) for action in step["actions"]]
            assert 0 <= step["taken"] < n


def test_the_same_seed_gives_the_same_episodes() -> None:
    first, again, other = (sampled("bitflip", UniformScorer(), seed, 2) for seed in (1, 1, 2))
    assert first == again
    assert first != other
