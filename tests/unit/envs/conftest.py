"""Playing an environment, and holding it to the contract of `TextEnv`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

from sacglam.envs import TextEnv, check_actions
from sacglam.types import Observation, Step

Play = Callable[[TextEnv, str, int, Sequence[int]], tuple[Observation, list[Step]]]


def _play(env: TextEnv, goal: str, seed: int, picks: Sequence[int]) -> tuple[Observation, list[Step]]:
    start = observation = env.reset(goal, seed)
    steps: list[Step] = []
    for pick in picks:
        step = env.step(pick % len(observation.actions))
        steps.append(step)
        observation = step.observation
        if step.terminated or step.truncated:
            break
    return start, steps


@pytest.fixture(scope="session")
def play() -> Play:
    """Play `picks`, each taken modulo the number of actions, until the episode ends."""
    return _play


@pytest.fixture(scope="session")
def check_contract() -> Callable[[TextEnv, str, int, Sequence[int]], None]:
    """Assert on one episode all that `TextEnv` promises."""

    def check(env: TextEnv, goal: str, seed: int, picks: Sequence[int]) -> None:
        episode = _play(env, goal, seed, picks)
        assert _play(env, goal, seed, picks) == episode, "not a function of (goal, seed, actions)"
        start, steps = episode
        for observation in (start, *(step.observation for step in steps)):
            check_actions(observation)
        said: set[str] = set()
        for step in steps:
            assert len(set(step.achieved)) == len(step.achieved)
            assert not said & set(step.achieved), "achieved twice"
            said |= set(step.achieved)
            assert (step.reward == 1.0) == (goal in step.achieved) == step.terminated
            assert step.reward in (0.0, 1.0)
            assert not (step.terminated and step.truncated)
            trained_on = env.goals("train")
            assert all(text == goal or text in trained_on for text in step.achieved), "a held-out goal leaked"

    return check


@pytest.fixture(scope="session")
def random_success() -> Callable[[TextEnv, int], float]:
    """The share of episodes, of goals drawn uniformly, in which a uniformly random policy succeeds."""

    def measure(env: TextEnv, episodes: int) -> float:
        rng = Random(0)
        goals = env.goals("train")
        successes = 0.0
        for seed in range(episodes):
            observation = env.reset(rng.choice(goals), seed)
            ended = False
            while not ended:
                step = env.step(rng.randrange(len(observation.actions)))
                observation, ended = step.observation, step.terminated or step.truncated
                successes += step.reward
        return successes / episodes

    return measure
