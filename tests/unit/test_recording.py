"""Collecting episodes: the planner's choices, noise, and which episodes are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sacglam.build import build
from sacglam.config import load
from sacglam.envs import CheckedEnv, make
from sacglam.envs.bitflip import BitFlip
from sacglam.errors import ConfigError, EnvironmentContractError
from sacglam.recording import record
from sacglam.scoring.base import UniformScorer
from sacglam.types import LogPolicy, Query
from tests.conftest import TINY


def bits(**options: Any) -> CheckedEnv:
    return make("bitflip", bits=4, **options)


@pytest.mark.parametrize("name", ["bitflip", "playground_simple"])
def test_the_planner_takes_the_fewest_steps(name: str) -> None:
    env = make(name)
    for episode in record(lambda: make(name), None, 8):
        env.reset(episode.goal, episode.seed)
        assert (episode.success, len(episode.steps)) == (True, env.optimal_length())


def test_with_noise_the_planner_still_gets_there_if_there_is_time() -> None:
    episodes = list(record(lambda: bits(max_steps=40), None, 30, noise=0.5))
    wrong = sum(each.action(t)[-1] not in each.goal for each in episodes for t in range(len(each.steps)))
    actions = sum(len(each.steps) for each in episodes)
    assert all(each.success for each in episodes)
    assert 0.1 < wrong / actions < 0.4  # half of them random, of which some are right


class Advised(BitFlip):
    """Its expert sets bits from the left, and is lost in the first state of `A B`."""

    def expert(self) -> int | None:
        wrong = [bit for bit in range(2) if (self._state ^ self._space[self._goal]) >> bit & 1]
        return None if self._goal == 3 and not self._steps else wrong[0]


def test_an_expert_comes_before_the_planner_and_the_planner_where_it_is_lost() -> None:
    episodes = list(record(lambda: CheckedEnv(Advised(bits=2), "advised"), None, 20))
    assert all(len(each.steps) <= 2 and each.success for each in episodes)


def test_without_expert_or_planner_it_says_what_to_do() -> None:
    class Lost(BitFlip):
        def optimal_length(self) -> Any:
            return None

    with pytest.raises(ConfigError, match="neither an expert nor a planner"):
        list(record(lambda: CheckedEnv(Lost(bits=2), "lost"), None, 1))
    with pytest.raises(ConfigError, match="neither an expert nor a planner"):
        list(record(lambda: bits(), None, 1, repeats=False))


@pytest.mark.parametrize("first", [0, None])
def test_a_planner_need_not_help_with_the_first_goal(first: int | None) -> None:
    class Partly(BitFlip):
        def optimal_length(self) -> Any:
            return first if self._goal == "a b" else super().optimal_length()

    assert len(list(record(lambda: CheckedEnv(Partly(bits=2), "partly"), None, 4))) == 4


def test_an_experts_action_has_to_exist() -> None:
    class Beyond(BitFlip):
        def expert(self) -> int:
            return 2

    with pytest.raises(EnvironmentContractError, match="expected an action below 2, or None; got 2"):
        list(record(lambda: CheckedEnv(Beyond(bits=2), "beyond"), None, 1))


def test_a_scorer_plays_and_only_successes_are_kept() -> None:
    episodes = list(record(bits, UniformScorer(), 10, success_only=True))
    assert [each.success for each in episodes] == [True] * 10
    assert not all(each.success for each in record(bits, UniformScorer(), 10))


def test_the_seed_decides() -> None:
    one, again, other = (list(record(bits, UniformScorer(), 6, seed=seed)) for seed in (1, 1, 2))
    assert one == again
    assert one != other


def test_hopeless_play_is_given_up() -> None:
    class Wrong(UniformScorer):
        def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
            # The first bit, in which alone one goal in 255 differs.
            return [np.array([0.0, *[-np.inf] * 7], dtype=np.float32) for _ in queries]

    with pytest.raises(ConfigError, match="expected 40 successful episodes"):
        list(record(lambda: make("bitflip", max_steps=1), Wrong(), 40, success_only=True))


def test_a_run_with_the_same_seed_plays_other_episodes() -> None:
    demonstrated = {(each.goal, each.seed) for each in record(lambda: make("playground_simple"), None, 20, seed=3)}
    built = build(load(overrides=[*TINY, "seed=3", "device=cpu"]))
    built.collector.rollout.collect(8)  # its first eight episodes have begun
    starts = {(each["goal"], each["seed"]) for each in built.collector.rollout.state()}
    assert starts
    assert not demonstrated & starts
