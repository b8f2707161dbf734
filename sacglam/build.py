"""From a configuration to the objects of one process: environment, model, learner, replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sacglam import cpu
from sacglam.clock import PhaseClock
from sacglam.config import Config
from sacglam.envs import TextEnv, make
from sacglam.errors import ConfigError
from sacglam.learner.backend import Backend, TorchBackend
from sacglam.learner.learner import Learner
from sacglam.models.actor_critic import ActorCritic, adapters_needed
from sacglam.models.base import PackedLM
from sacglam.models.heads import QHeads
from sacglam.models.loading import load_model, lora_config
from sacglam.models.policy_head import PolicyHead
from sacglam.models.tokens import QueryTokenizer
from sacglam.replay.buffer import ReplayBuffer
from sacglam.replay.experience import HindsightReplay
from sacglam.scoring.packed import PackedScorer


@dataclass(frozen=True)
class Brain:
    """The language model with its adapters and heads, and what is needed to ask it."""

    lm: PackedLM
    tokenizer: QueryTokenizer
    policy: PolicyHead
    model: ActorCritic

    def scorer(self, version: Callable[[], int] = lambda: 0) -> PackedScorer:
        """A scorer over these weights."""
        return PackedScorer(self.lm, self.tokenizer, self.policy, version)


def resolve(config: Config) -> Config:
    """The configuration with everything left open settled for this machine: device, threads, a local model's folder.

    Raises:
        ConfigError: this machine has no such device.
    """
    device = settle_device(config)
    if not config.learners.count:  # the learner runs here
        _check_device(device)
    model = config.model
    if Path(model.name).is_dir():
        model = model.model_copy(update={"name": str(Path(model.name).resolve())})
    threads = config.threads or (0 if config.engines.count else cpu.default_threads())
    return config.model_copy(update={"device": device, "threads": threads, "model": model})


def settle_device(config: Config) -> str:
    """The device that `auto` stands for on this machine, or the one named."""
    if config.device != "auto":
        return config.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {device!r} cannot be used here ({error}); take auto or cpu") from error


def build_env(config: Config) -> TextEnv:
    """One environment."""
    return make(config.env.name, **config.env.options)


def build_brain(config: Config) -> Brain:
    """The model with fresh adapters and heads, seeded by `config.seed` through torch's global generator."""
    torch.manual_seed(config.seed)
    loaded = load_model(config.model, torch.device(config.device))
    critic = config.critic
    architecture = loaded.architecture
    lm = architecture.lm(
        loaded.model,
        lora_config(config.model, architecture),
        adapters_needed(critic.backbone, critic.target_backbone),
        bucket=config.model.bucket,
        merged=config.model.lora.merged,
    )
    heads, target_heads = (
        QHeads(lm.hidden_size, critic.hidden, critic.num_critics, critic.input, critic.max_actions).to(config.device)
        for _ in range(2)
    )
    policy = PolicyHead(config.policy.length_normalised, config.policy.temperature)
    return Brain(
        lm=lm,
        tokenizer=QueryTokenizer(loaded.tokenizer, loaded.max_tokens, config.policy.score_eos, architecture.prompt_eos),
        policy=policy,
        model=ActorCritic(lm, heads, target_heads, policy, critic.backbone, critic.target_backbone),
    )


def build_learner(config: Config, clock: PhaseClock | None = None) -> Learner:
    """A learner with a model of its own: this process's rank, if `learners.count` is set.

    The process has then joined the others by `sacglam.learner.deepspeed.init_distributed`. The same seed gives every
    rank the same weights, and the same as in one process.
    """
    return learner_on(build_brain(config), config, clock or PhaseClock())


def learner_on(brain: Brain, config: Config, clock: PhaseClock) -> Learner:
    """The learner of the weights of `brain`."""
    algo = config.algo
    intervals = -(-config.steps // algo.update_interval)
    return Learner(
        brain.model,
        brain.lm,
        brain.tokenizer,
        brain.scorer(),
        _backend(brain.model, config),
        algo,
        config.critic,
        intervals * algo.updates_per_interval,
        clock,
    )


def _backend(model: ActorCritic, config: Config) -> Backend:
    groups, limit = (model.actor_parameters(), model.critic_parameters()), config.algo.max_grad_norm
    if not config.learners.count:
        return TorchBackend(groups, limit)
    from sacglam.learner.deepspeed import DeepSpeedBackend

    return DeepSpeedBackend(model.module, model.learned(), groups, limit, config.learners.zero_stage)


def build_replay(config: Config, env: TextEnv, rng: np.random.Generator) -> HindsightReplay:
    """The replay buffer with hindsight, for the goals of `env`."""
    algo, replay = config.algo, config.replay
    goal_types = Counter(env.goal_type(goal) for goal in env.goals("train"))
    return HindsightReplay(
        ReplayBuffer(replay.capacity, replay.sampling, replay.hindsight_ratio, env.goal_type, goal_types),
        rng,
        n_step=algo.n_step,
        gamma=algo.gamma,
        hindsight=replay.hindsight,
        batch_size=algo.batch_size,
        batches=algo.updates_per_interval,
        min_size=replay.min_size,
    )
