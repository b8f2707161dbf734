"""From measurements to the whole run, with numbers worked out by hand."""

from __future__ import annotations

import pytest

from sacglam import config as configuration
from sacglam.runtime.placement import Plan
from sacglam.tools.dry_run.calibrate import Calibration, RandomRollout, Sample
from sacglam.tools.dry_run.forecast import EVALUATION, INITIAL, placed, predict, states_of_evaluations, updates_of

PLAYED = RandomRollout([], [], environment_s=0.001, replay_s=0.5, episode_steps=30)
ALONE = Plan(0, 0, 1, "cpu", 1, 1)
EPISODES = "evaluation.episodes=5"
PHASES = {"batch": 0.1, "target": 1.0, "forward": 2.0, "backward": 3.0, "optimizer": 0.25}


def measured(states: int, score_s: float, rows: int, evaluation: Sample | None = None) -> Calibration:
    scoring = Sample(states, {"scoring": score_s}, None)
    return Calibration(scoring, evaluation or scoring, Sample(rows, PHASES, None))


def test_sac() -> None:
    """1,024 random steps, then 100 intervals of 32 with 2 updates of 256 rows; 64 rows were measured."""
    config = configuration.override(configuration.Config(), ["steps=4224", "replay.random_steps=1024", EPISODES])
    assert updates_of(config, 30) == 200, "the random steps take 32 intervals"
    assert updates_of(config, 40) == 2 * (100 - 8)
    found = predict(config, ALONE, PLAYED, measured(16, 0.8, 64))
    assert found == pytest.approx(
        {
            "environment": 4224 * 0.001,
            "scoring": 3200 * 0.05,
            "replay": 50.0,
            "batch": 200 * 0.4,
            "target": 200 * 4.0,
            "forward": 200 * 8.0,
            "backward": 200 * 12.0,
            "optimizer": 200 * 0.25,
            EVALUATION: (4 * 5 + 3 * 2 * 4) * 30 * (0.05 + 0.001) + 5 * 30 * 0.001,
        }
    )


def test_ppo() -> None:
    """2 intervals of 2,048 steps, passed over once and learnt from 16 times, in 3 minibatches of 800 steps."""
    config = configuration.override(
        configuration.Config(), ["steps=4000", "algo={type: ppo, batch_size: 800}", EPISODES]
    )
    assert updates_of(config, 0) == 2 * 16 * 3
    found = predict(config, ALONE, PLAYED, measured(32, 3.2, 4))
    assert found["scoring"] == pytest.approx(4096 * 0.1)
    assert found["target"] == pytest.approx(4096 * 0.25)
    assert found["forward"] == pytest.approx(4096 * 16 * 0.5)
    assert found["optimizer"] == pytest.approx(96 * 0.25)


def test_initial_updates_repeat_the_optimizer_for_each_update_and_the_rest_for_each_row() -> None:
    """100 updates of 256 rows on two ranks; 4 rows were measured."""
    config = configuration.override(
        configuration.Config(),
        ["steps=3200", "replay={demonstrations: x.jsonl, demonstration_updates: 100}", EPISODES],
    )
    found = predict(config, Plan(0, 2, 1, "cpu", 1, 1), PLAYED, measured(16, 0.8, 4))
    assert found[INITIAL] == pytest.approx(100 * ((0.1 + 1.0 + 2.0 + 3.0) / 4 * 256 / 2 + 0.25))


def test_an_evaluation_scores_more_states_at_once_than_a_few_copies() -> None:
    config = configuration.override(configuration.Config(), ["steps=3200", "env.copies=1", EPISODES])
    found = predict(config, ALONE, PLAYED, measured(1, 0.1, 64, Sample(32, {"scoring": 0.32}, None)))
    assert found["scoring"] == pytest.approx(3200 * 0.1)
    assert found[EVALUATION] == pytest.approx((4 * 5 + 3 * 2 * 4) * 30 * (0.01 + 0.001) + 5 * 30 * 0.001)


def test_engines_share_states_and_ranks_rows() -> None:
    config = configuration.override(configuration.Config(), ["steps=3200", EPISODES])
    alone = predict(config, ALONE, PLAYED, measured(16, 0.8, 64))
    shared = predict(config, Plan(2, 3, 1, "cuda", 1, 1), PLAYED, measured(16, 0.8, 64))
    assert shared["scoring"] == pytest.approx(alone["scoring"] / 2)
    assert shared["backward"] == pytest.approx(alone["backward"] / 3)
    assert shared["optimizer"] == alone["optimizer"]


@pytest.mark.parametrize(("env", "heldout"), [("playground", 1), ("bitflip", 0)])
def test_states_outside_the_rollout(env: str, heldout: int) -> None:
    """Before, after, sampled and held out 5 each; 4 times 10; 8 times 4 samples, also for Q."""
    settings = ["steps=12800", "evaluation={episodes: 5, every_steps: 3200, every_episodes: 10}"]
    settings += [f"env.name={env}"]
    config = configuration.override(configuration.Config(), settings)
    assert states_of_evaluations(config, 7) == ((3 + heldout) * 5 + 4 * 10 + 3 * 8 * 4) * 7


def test_a_dry_run_settles_the_scale_of_rewards_as_a_run_does() -> None:
    own = ["env.name=playground_simple", "env.reward=environment", "env.success_reward=4"]
    settled, _ = placed(configuration.load(None, [*own, "device=cpu"]))
    assert settled.algo.reward_scale == 0.25  # a success is the largest return
    assert not settled.algo.goal_rewards
