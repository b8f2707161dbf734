"""From seconds that were measured to those of a whole training, phase by phase."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sacglam.config import Config
from sacglam.runtime.placement import Plan
from sacglam.tools.dry_run.calibrate import Calibration
from sacglam.tools.dry_run.random_rollout import RandomRollout

PER_UPDATE = ("optimizer",)
"""Phases that an update pays once; the others cost by the row."""
EVALUATION = "evaluation, samples"


def updates_of(config: Config) -> int:
    """Gradient updates of the whole training; those that the first intervals leave out are counted, too."""
    return _intervals(config) * config.algo.updates_per_interval


def predict(config: Config, where: Plan, played: RandomRollout, calibration: Calibration) -> dict[str, float]:
    """Seconds of a whole training by phase, one after the other.

    Engines share the states and ranks the rows evenly; what they say to each other takes no time here.
    """
    engines, ranks = max(1, where.engines), max(1, where.learners)
    state_s = calibration.scoring.seconds["scoring"] / calibration.scoring.size / engines
    steps = _intervals(config) * config.algo.update_interval
    found = {
        "environment": steps * played.environment_s,
        "scoring": steps * state_s,
        "replay": _intervals(config) * played.replay_s,
    }
    for phase, seconds in calibration.update.seconds.items():
        if phase in PER_UPDATE:
            found[phase] = updates_of(config) * seconds
        else:
            found[phase] = rows_of(config, phase) / ranks * seconds / calibration.update.size
    found[EVALUATION] = states_beside(config, played.episode_steps) * state_s
    return found


def seconds_of_an_update(config: Config, predicted: Mapping[str, float]) -> float:
    """Mean seconds of an update in what `predict` gave; PPO's look at each step is part of it."""
    beside = ("environment", "scoring", "replay", EVALUATION)
    return sum(seconds for phase, seconds in predicted.items() if phase not in beside) / updates_of(config)


def rows_of(config: Config, phase: str) -> int:
    """Rows that go through a phase of all updates together. PPO looks at each step once before its epochs (target)."""
    if config.algo.type == "ppo":
        return _intervals(config) * config.algo.update_interval * (1 if phase == "target" else config.algo.epochs)
    return updates_of(config) * config.algo.batch_size


def states_beside(config: Config, episode_steps: float) -> float:
    """States scored outside of the rollout: evaluations (before, after, held-out goals, interim) and samples.

    Those of a sample are asked for Q values besides.
    """
    evaluation, tracking = config.evaluation, config.tracking
    episodes = 3 * evaluation.episodes
    if evaluation.every_steps:
        episodes += config.steps // evaluation.every_steps * evaluation.every_episodes * (1 + evaluation.heldout)
    if tracking.samples_every_steps:
        episodes += 2 * (config.steps // tracking.samples_every_steps) * tracking.samples_episodes
    return episodes * episode_steps


def _intervals(config: Config) -> int:
    return math.ceil(config.steps / config.algo.update_interval)
