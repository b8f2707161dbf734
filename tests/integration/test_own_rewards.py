"""Runs that learn from the environment's own rewards, with relabelling and without."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from typing_extensions import override

from sacglam import config as configuration
from sacglam.agent import load_agent
from sacglam.config import Config
from sacglam.envs import CheckedEnv, Split
from sacglam.envs.base import BaseEnv
from sacglam.envs.playground import simple
from sacglam.errors import ConfigError
from sacglam.resolve import with_reward_scale
from sacglam.training import train
from sacglam.types import Observation, Step
from tests.conftest import SIMPLE_PPO, call, sacglam, tiny_ppo, tiny_train
from tests.integration.test_beginnings import summary
from tests.integration.test_resume import assert_same_end, interrupt, metrics

CLIFF = [
    "env.name=gymnasium:CliffWalking-v1",
    "env.options.max_steps=20",
    "env.reward=environment",
    "evaluation.every_steps=320",
    "evaluation.every_episodes=8",
]


class Corridor(BaseEnv[None]):
    """Five rooms in a row, from the middle one to either end: 4 at the right end, -4 at the left, -1 a step.

    There are no goals to achieve.
    """

    def __init__(self) -> None:
        super().__init__("corridor", 12)
        self._space = {"Earn most": None}

    def goals(self, split: Split) -> Sequence[str]:
        return tuple(self._space) if split == "train" else ()

    def goal_type(self, goal: str) -> str:
        return "only"

    def _start(self, wanted: None, rng: Random) -> Observation:
        self._room = 2
        return self._observe()

    def _observe(self) -> Observation:
        return Observation(f"You are in room {'ABCDE'[self._room]}", ("Go left", "Go right"))

    def step(self, action: int) -> Step:
        self._room += (-1, 1)[action]
        reward = {0: -4.0, 4: 4.0}.get(self._room, -1.0)
        return self._outcome(self._observe(), (), terminated=self._room in (0, 4), own_reward=reward)


class Paid(CheckedEnv):
    """The simple game, which pays 20 for the goal and costs 1 for every other step."""

    def __init__(self) -> None:
        super().__init__(simple(), "paid")

    @override
    def step(self, action: int) -> Step:
        step = super().step(action)
        return replace(step, own_reward=20.0 if step.reward else -1.0)


CORRIDOR = [f"env.name={__name__}:Corridor", "env.reward=environment"]


@pytest.mark.slow
def test_returns_are_reported_and_a_killed_run_resumes_exactly(tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "killed"
    overrides = [*CLIFF, "env.success_reward=-1", "replay.hindsight.type=future"]
    done = call(tiny_train(whole, *overrides), curves=True)
    assert done.returncode == 0, done.stderr
    assert "derived: algo.reward_scale = " in done.stdout
    assert (whole / "curves.png").stat().st_size > 1000
    lines, end = metrics(whole), summary(whole)
    assert all(line["episode_return"] <= -20 for line in lines if "episode_return" in line)
    evaluated = {line["env_steps"]: line["eval_return"] for line in lines if "eval_return" in line}
    assert set(evaluated) == {320, 640}
    assert end["best"]["return_after"] == max(evaluated.values())
    assert all(end[f"return_{name}"] <= -20 for name in ("random", "before", "after", "sampled"))
    interrupt(tiny_train(run, *overrides), run, 6, signal.SIGKILL)
    assert call(sacglam("train", resume=str(run))).returncode == 0
    assert_same_end(run, whole, lines=len(lines))
    done = call(sacglam("evaluate", whole, "--json", episodes="4"))
    assert json.loads(done.stdout)["mean_return"] <= -20


@pytest.mark.slow
def test_workers_give_ppo_the_same_rewards(tmp_path: Path) -> None:
    for name, workers in {"alone": 0, "workers": 2}.items():
        done = call(tiny_ppo(tmp_path / name, *CLIFF, "steps=320", "env.copies=4", f"env.workers={workers}"))
        assert done.returncode == 0, done.stderr
    assert metrics(tmp_path / "alone") == metrics(tmp_path / "workers")
    assert any(line.get("episode_return", 0) < 0 for line in metrics(tmp_path / "alone"))


@pytest.mark.slow
def test_what_has_no_goals_is_learnt_from_its_rewards(tmp_path: Path) -> None:
    overrides = [*CORRIDOR, "steps=10240", "threads=1", "evaluation.episodes=20", "policy.temperature=auto"]
    found = train(configuration.load(SIMPLE_PPO, [*overrides, "tracking.to=[]"]), tmp_path / "run")
    # -1 + 4 by going right twice; the random policy earns about -3, and -4 - 1 by the shortest way left.
    assert found["return_random"] < 0
    assert found["return_after"] == 3.0
    assert found["success_after"]["overall"] == 0.0
    assert found["warnings"] == []
    agent = load_agent(tmp_path / "run", "cpu", trusted=True)
    state = ("You are in room D", "Earn most", ("Go left", "Go right"))
    assert agent.act(*state) == "Go right"
    assert agent.value(*state) == pytest.approx(4, abs=1.5)  # in the environment's units


@pytest.mark.slow
def test_hindsight_learns_from_what_success_is_paid(tmp_path: Path) -> None:
    overrides = [f"env.name={__name__}:Paid", "env.reward=environment", "env.success_reward=20", "steps=1280"]
    config = configuration.load(None, [*overrides, "threads=1", "evaluation.episodes=100", "tracking.to=[]"])
    found = train(config, tmp_path / "run")
    # Two steps to a goal, at best: -1 + 20. The random policy succeeds in a third of its episodes.
    assert found["return_random"] < 5
    assert found["return_after"] >= 13
    assert found["success_after"]["overall"] >= 0.75


def read(*overrides: str) -> Config:
    return configuration.load(None, list(overrides))


def test_the_scale_is_that_of_random_returns_and_asked_for_only_once() -> None:
    # Twelve steps of -1 cost 1 - 0.9^12 of 10, or 7.2, and the left end costs 4: the largest lies in between, or near.
    config = with_reward_scale(read(*CORRIDOR, "algo.gamma=0.9"))
    assert 1 / 10 <= (config.algo.reward_scale or 0) <= 1 / 4
    assert with_reward_scale(config) is config
    assert with_reward_scale(read(*CORRIDOR, "algo.reward_scale=3")).algo.reward_scale == 3
    assert with_reward_scale(read()).algo.reward_scale is None


class Worthless(Corridor):
    """Pays nothing."""

    def step(self, action: int) -> Step:
        return replace(super().step(action), own_reward=0.0)


@pytest.mark.parametrize(("name", "noted"), [("Corridor", 0), ("Worthless", 1)])
def test_where_random_play_earns_nothing_a_note_says_so(name: str, noted: int) -> None:
    notes = list[str]()
    with_reward_scale(read(*CORRIDOR, f"env.name={__name__}:{name}"), notes.append)
    assert ["set algo.reward_scale" in note for note in notes] == [True] * noted


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["algo.reward_scale=2"], "set env.reward to environment"),
        (["env.success_reward=20"], "set env.reward to environment"),
        (["env.reward=environment", "replay.hindsight.type=future"], "set env.success_reward, if"),
        (["env.reward=environment", "partner.type=judge"], "set one of them to its default"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(*overrides)
    assert read("env.reward=environment", "replay.hindsight.type=none").env.reward == "environment"
