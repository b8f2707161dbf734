"""From a configuration to the objects of one process: environment, model, learner, replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sacglam import cpu
from sacglam.algos.base import Algorithm, State
from sacglam.algos.ppo import Ppo
from sacglam.algos.sac import Sac
from sacglam.clock import PhaseClock
from sacglam.config import Config, PpoConfig
from sacglam.envs import TextEnv, make
from sacglam.errors import ConfigError
from sacglam.learner.backend import Backend, TorchBackend
from sacglam.learner.learner import Learner
from sacglam.learner.schedule import Schedule
from sacglam.models.actor_critic import ActorCritic, adapters_needed
from sacglam.models.actor_value import ActorValue
from sacglam.models.agent_model import AgentModel, trained_adapters
from sacglam.models.base import PackedLM
from sacglam.models.heads import QHeads, ValueHead
from sacglam.models.loading import load_model, lora_config
from sacglam.models.policy_head import PolicyHead
from sacglam.models.tokens import QueryTokenizer
from sacglam.prompt import query
from sacglam.replay.buffer import ReplayBuffer
from sacglam.replay.experience import Experience, HindsightReplay, OnPolicy
from sacglam.scoring.packed import PackedScorer
from sacglam.types import Query

_SHUFFLES = 0x5F0FF1E  # the stream of PPO's minibatches

Observe = Callable[[PackedLM], PackedLM]
"""What stands before a language model and looks on, as one itself."""


def as_it_is(lm: PackedLM) -> PackedLM:
    """`lm` itself."""
    return lm


@dataclass(frozen=True)
class Brain:
    """The language model with its adapters and heads, and what is needed to ask it."""

    lm: PackedLM
    tokenizer: QueryTokenizer
    policy: PolicyHead
    model: AgentModel

    def scorer(self, version: Callable[[], int] = lambda: 0) -> PackedScorer:
        """A scorer over these weights."""
        return PackedScorer(self.lm, self.tokenizer, self.policy, version)

    @torch.no_grad()
    def q_values(self, queries: Sequence[Query]) -> list[npt.NDArray[np.float32]]:
        """min_c Q_c of each query's own actions, one array (A,) for each; empty where the critic has V alone."""
        if not isinstance(self.model, ActorCritic):
            return [np.empty(0, dtype=np.float32) for _ in queries]
        values = self.model.evaluate(self.model.pack(self.tokenizer(queries)))
        q_BA = values.q_CBA.min(dim=0).values.float().cpu().numpy()
        return [row[: len(q.actions)] for row, q in zip(q_BA, queries, strict=True)]

    def pack(self, states: Sequence[State]) -> Any:
        """Goals and observations as the model takes them."""
        return self.model.pack(self.tokenizer([query(goal, observation) for goal, observation in states]))


def resolve(config: Config) -> Config:
    """The configuration with everything left open settled for this machine: device, threads, a local model's folder.

    Raises:
        ConfigError: this machine has no such device.
    """
    device = settle_device(config)
    if not config.learners.count:  # the learner runs here
        check_device(device)
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


def check_device(device: str) -> None:
    """Refuse a device that this machine lacks.

    Raises:
        ConfigError: it does.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {device!r} cannot be used here ({error}); take auto or cpu") from error


def build_env(config: Config) -> TextEnv:
    """One environment."""
    return make(config.env.name, **config.env.options)


def build_brain(config: Config, observe: Observe = as_it_is) -> Brain:
    """The model with fresh adapters and heads, seeded by `config.seed` through torch's global generator.

    What `observe` makes of the language model takes its place: a profile counts the tokens that go through.
    """
    torch.manual_seed(config.seed)
    loaded = load_model(config.model, torch.device(config.device))
    architecture = loaded.architecture
    lm = observe(
        architecture.lm(
            loaded.model,
            lora_config(config.model, architecture),
            _adapters(config),
            bucket=config.model.bucket,
            merged=config.model.lora.merged,
        )
    )
    policy = PolicyHead(config.policy.length_normalised, config.policy.temperature)
    return Brain(
        lm=lm,
        tokenizer=QueryTokenizer(loaded.tokenizer, loaded.max_tokens, config.policy.score_eos, architecture.prompt_eos),
        policy=policy,
        model=_agent_model(config, lm, policy),
    )


def _adapters(config: Config) -> list[str]:
    critic = config.critic
    if config.algo.type == "ppo":
        return trained_adapters(critic.backbone)
    return adapters_needed(critic.backbone, critic.target_backbone)


def _agent_model(config: Config, lm: PackedLM, policy: PolicyHead) -> AgentModel:
    critic = config.critic
    if config.algo.type == "ppo":
        head = ValueHead(lm.hidden_size, critic.hidden).to(config.device)
        return ActorValue(lm, head, policy, critic.backbone)
    heads, target_heads = (
        QHeads(
            lm.hidden_size,
            critic.hidden,
            critic.num_critics,
            critic.input,
            critic.max_actions,
            critic.score_weight,
        ).to(config.device)
        for _ in range(2)
    )
    return ActorCritic(lm, heads, target_heads, policy, critic.backbone, critic.target_backbone)


def critic_settings(config: Config) -> dict[str, Any]:
    """What the critic's heads are, for those who read an exported agent."""
    if config.algo.type == "ppo":
        return {"value": "state", **config.critic.model_dump(mode="json", include={"backbone", "hidden"})}
    return {"value": "action", **config.critic.model_dump(mode="json")}


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
        _algorithm(brain, config, clock),
        brain.lm,
        brain.scorer(),
        brain.q_values,
        _backend(brain.model, config),
        Schedule(
            algo.actor_lr,
            algo.critic_lr,
            algo.lr_decay,
            total_updates=intervals * algo.updates_per_interval,
            micro_batch_size=algo.micro_batch_size,
        ),
        critic_settings(config),
        clock,
    )


def _algorithm(brain: Brain, config: Config, clock: PhaseClock) -> Algorithm:
    if isinstance(config.algo, PpoConfig):
        assert isinstance(brain.model, ActorValue)
        return Ppo(brain.model, brain.pack, config.algo, np.random.default_rng([config.seed, _SHUFFLES]), clock)
    assert isinstance(brain.model, ActorCritic)
    return Sac(brain.model, brain.pack, config.algo, clock)


def _backend(model: AgentModel, config: Config) -> Backend:
    groups, limit = (model.actor_parameters(), model.critic_parameters()), config.algo.max_grad_norm
    if not config.learners.count:
        return TorchBackend(groups, limit)
    from sacglam.learner.deepspeed import DeepSpeedBackend

    return DeepSpeedBackend(model.module, model.learned(), groups, limit, config.learners.zero_stage)


def build_experience(config: Config, env: TextEnv, rng: np.random.Generator) -> Experience:
    """What the algorithm keeps of its rollouts, for the goals of `env`."""
    algo, replay = config.algo, config.replay
    if isinstance(algo, PpoConfig):
        return OnPolicy()
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
