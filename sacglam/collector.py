"""The rollout and the experience that it collects, built from a run's configuration."""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sacglam.clock import PhaseClock
from sacglam.config import Config
from sacglam.config.sections import ReplayConfig
from sacglam.envs import CheckedEnv, TextEnv, make
from sacglam.envs.workers import in_workers
from sacglam.errors import ConfigError, EnvironmentContractError
from sacglam.exploration import Exploration
from sacglam.goals import GoalSource
from sacglam.imagination import IMAGINED
from sacglam.partners import Partner
from sacglam.policy import SamplingPolicy
from sacglam.prompt import Prompt
from sacglam.replay.buffer import ReplayBuffer
from sacglam.replay.demonstrations import Demonstrations
from sacglam.replay.experience import Experience, HindsightReplay, OnPolicy
from sacglam.replay.sampling import NoHindsight, WindowSampler
from sacglam.rollout import Rollout
from sacglam.scoring.base import Scorer
from sacglam.types import Classifiers, Query

_DEMONSTRATED = 200_000  # maximum entries of demonstrations
_FIRST_STATES_SEED = 0x9A217


@dataclass(frozen=True)
class Collector:
    """The rollout, and the experience that it collects."""

    rollout: Rollout
    experience: Experience
    goals: GoalSource
    sampler: WindowSampler
    rngs: dict[str, np.random.Generator]
    """The rollout's generators by their names in checkpoints."""
    demonstrations: Demonstrations | None = None


def collector(
    config: Config,
    scorer: Scorer,
    clock: PhaseClock,
    classifiers: Classifiers | None = None,
    partner: Partner | None = None,
) -> Collector:
    """Environments in lockstep under the policy of `scorer`, and the experience that the algorithm learns from.

    `classifiers` are those that the source of goals trains and asks; it needs none until it observes episodes. A
    `partner` may add goals.
    """
    policy_rng, starts_rng, replay_rng = map(np.random.default_rng, np.random.SeedSequence(config.seed).spawn(3))
    envs = [build_env(config) for _ in range(config.env.copies)]
    prompt, pursued = Prompt(config.prompt), envs[0].goals("train")
    goals = config.goals.build(pursued, envs[0].goal_type, starts_rng, prompt, classifiers)
    if partner:
        goals = partner.source(goals, _goal_type(envs[0]))
    settings = (prompt, config.env.repeats, config.algo.on_policy)
    demonstrations = None
    if file := config.replay.demonstrations:
        kept = {"hindsight": NoHindsight()} if config.algo.on_policy else {}  # which only imitates them
        ring = _buffer(config, config.replay.model_copy(update={"capacity": _DEMONSTRATED, **kept}), envs[0])
        demonstrations = Demonstrations.load(Path(file), envs[0], config.env.repeats, ring)
    sampler = WindowSampler(config.algo, config.prompt.history, config.env.rewards)
    experience: Experience = OnPolicy()
    explore = None
    if not config.algo.on_policy:
        buffer, given = _buffer(config, config.replay, envs[0]), demonstrations.ring if demonstrations else None
        buffer.others = given.remembered() if given else ()
        imitates = config.replay.demonstration_updates > 0
        experience = HindsightReplay(buffer, replay_rng, sampler, given, imitates)
        if share := config.algo.exploration_share:
            explore = Exploration(share, policy_rng, buffer.graph, config.env.rewards)
    rollout = Rollout(envs, scorer, SamplingPolicy(policy_rng), goals, clock, *settings, explore)
    rngs = {"starts_rng": starts_rng, "policy_rng": policy_rng}
    return Collector(rollout, experience, goals, sampler, rngs, demonstrations)


def _buffer(config: Config, replay: ReplayConfig, env: TextEnv) -> ReplayBuffer:
    """An empty buffer for the goals of `env`, and for those that a partner may imagine."""
    prior = Counter(env.goal_type(goal) for goal in env.goals("train"))
    of_graph = (config.algo.gamma, config.env.rewards, config.prompt.history)
    if not config.partner.imagines:
        return ReplayBuffer(replay, env.goal_type, prior, *of_graph)
    return ReplayBuffer(replay, _goal_type(env), {**prior, IMAGINED: 0}, *of_graph)


def _goal_type(env: TextEnv) -> Callable[[str], str]:
    """The environment's `goal_type`, but `IMAGINED` for goals it does not know or whose type no training goal has."""
    known = set(map(env.goal_type, env.goals("train")))

    def goal_type(goal: str) -> str:
        try:
            return found if (found := env.goal_type(goal)) in known else IMAGINED
        except (ConfigError, EnvironmentContractError):
            return IMAGINED

    return goal_type


def first_states(config: Config, count: int = 64) -> list[Query]:
    """First states of fixed training episodes, for comparing policies and choosing temperatures."""
    env = build_env(config)
    starts = GoalSource(env.goals("train"), np.random.default_rng(_FIRST_STATES_SEED))
    chosen = itertools.islice(starts, count)
    prompt = Prompt(config.prompt)
    return [prompt(start.goal, env.reset(start.goal, start.seed)) for start in chosen]


def build_env(config: Config) -> CheckedEnv:
    """One environment, in a worker process if `env.workers` is set."""
    env, own_rewards = config.env, config.env.reward == "environment"
    if env.workers:
        return in_workers(env.name, env.options, env.workers, own_rewards)
    return make(env.name, **env.options).rewarding(own_rewards)
