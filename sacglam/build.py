"""From a configuration to the parts of a run, in one process or in many. Everything is wired here."""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sacglam import cpu
from sacglam.clock import PhaseClock
from sacglam.config import Config
from sacglam.envs import TextEnv, make
from sacglam.envs.workers import in_workers
from sacglam.errors import ConfigError
from sacglam.learner.backend import Backend, TorchBackend
from sacglam.learner.learner import Learner
from sacglam.models.agent_model import AgentModel
from sacglam.models.heads import PolicyHead
from sacglam.models.loading import load_model, lora_config, merges
from sacglam.models.packed_lm import PackedLM
from sacglam.models.packing_check import check_frozen
from sacglam.models.tokens import QueryTokenizer
from sacglam.policy import SamplingPolicy
from sacglam.prompt import Prompt
from sacglam.replay.buffer import ReplayBuffer
from sacglam.replay.experience import Experience, HindsightReplay, OnPolicy
from sacglam.replay.hindsight import Cut
from sacglam.rollout import RandomStarts, Rollout
from sacglam.runtime.devices import machine
from sacglam.runtime.engines import EngineGroup
from sacglam.runtime.group import LocalWorker, Worker
from sacglam.runtime.handoff import EngineHandoff, Handoff
from sacglam.runtime.learners import LearnerGroup
from sacglam.runtime.placement import Plan, plan
from sacglam.runtime.ray import RayRuntime, WorkerSpec
from sacglam.scoring.base import Engine, Scorer
from sacglam.scoring.packed import PackedEngine, PackedScorer
from sacglam.types import Query

PARITY_TOLERANCES = {"float32": 1e-4, "bfloat16": 0.15}  # docs/guides/gpus.md says why
_FIRST_STATES_SEED, _PARITY_STATES = 0x9A217, 8
_SHUFFLES = 0x5F0FF1E  # the stream of an algorithm's own draws, such as PPO's minibatches


@dataclass(frozen=True)
class Collector:
    """What acts in the environments, and what it leaves to learn from."""

    rollout: Rollout
    experience: Experience
    rngs: dict[str, np.random.Generator]
    """The rollout's generators by their names in checkpoints."""


@dataclass(frozen=True)
class Processes:
    """What runs next to the driver."""

    runtime: RayRuntime
    engines: EngineGroup | None
    """None where the learner's ranks score."""


@dataclass(frozen=True)
class Parts:
    """What the loop works with."""

    learners: LearnerGroup
    handoff: Handoff
    collector: Collector
    clock: PhaseClock
    model: AgentModel | None = None
    """The model that learns and acts, where all of it is in this process."""
    processes: Processes | None = None

    @property
    def scorer(self) -> Scorer:
        """Where the rollout gets its policy from."""
        return self.collector.rollout.scorer

    def close(self) -> None:
        """End all processes but this one."""
        if self.processes:
            self.processes.runtime.close()


def build(config: Config, note: Callable[[str], None] = print) -> Parts:
    """All parts of one run, seeded by `config.seed`; starts the processes it asks for, and waits for none.

    Sets this process's thread count. `note` is given a line for the user when an engine restarts.
    """
    cpu.prepare(config.threads or 1)  # with other processes, 0 leaves threads to the placement of each
    clock = PhaseClock()
    if not config.in_one_process:
        torch.manual_seed(config.seed)  # nothing here draws from it, but its state is in the checkpoints
        return _build_distributed(config, clock, note)
    model = build_model(config)
    learner = build_learner(config, model, clock)
    learners = LearnerGroup([LocalWorker(learner)], config.learners.timeout_s)
    return Parts(learners, Handoff(), collector(config, learners, clock), clock, model)


def collector(config: Config, scorer: Scorer, clock: PhaseClock) -> Collector:
    """Environments in lockstep under the policy of `scorer`, and what the algorithm keeps of their episodes."""
    policy_rng, starts_rng, replay_rng = map(np.random.default_rng, np.random.SeedSequence(config.seed).spawn(3))
    envs = [build_env(config) for _ in range(config.env.copies)]
    starts = RandomStarts(envs[0].goals("train"), starts_rng)
    settings = (Prompt(config.prompt), config.env.repeats, config.algo.on_policy)
    rollout = Rollout(envs, scorer, SamplingPolicy(policy_rng), starts, clock, *settings, config.algo.random_actions)
    experience = build_experience(config, envs[0], replay_rng)
    return Collector(rollout, experience, {"starts_rng": starts_rng, "policy_rng": policy_rng})


def _build_distributed(config: Config, clock: PhaseClock, note: Callable[[str], None]) -> Parts:
    """Engines and learner ranks, whichever there are, in processes of their own that Ray places."""
    where = plan(config, machine())
    if where.fault:
        raise ConfigError(where.fault)
    on_gpu = config.device != "cpu"
    engine = WorkerSpec("Engine", where.engine_threads, where.tensor_parallel if on_gpu else 0)
    learner = WorkerSpec("LearnerRank", where.learner_threads, 1 if on_gpu else 0)
    runtime = RayRuntime(config.runtime.address, [engine] * where.engines + [learner] * where.learners)

    def start(index: int) -> Worker:
        return runtime.spawn(index).build(host_engine, config, where.engine_threads)

    try:
        if not where.engines:
            learners = _start_learners(runtime, config, where, clock)
            parts = collector(config, learners, clock)
            return Parts(learners, Handoff(), parts, clock, processes=Processes(runtime, None))
        engines = EngineGroup(start, config.engines, note)
        learners = _start_learners(runtime, config, where, clock)
        tolerance = PARITY_TOLERANCES[config.model.dtype]
        every = config.engines.parity_every * config.algo.updates
        handoff = EngineHandoff(engines, first_states(config, _PARITY_STATES), tolerance, every, clock)
        processes = Processes(runtime, engines)
        return Parts(learners, handoff, collector(config, engines, clock), clock, processes=processes)
    except BaseException:
        runtime.close()
        raise


def _start_learners(runtime: RayRuntime, config: Config, where: Plan, clock: PhaseClock) -> LearnerGroup:
    timeout_s = config.learners.timeout_s
    if not where.learners:  # the driver learns, on its own clock
        cpu.prepare(where.learner_threads)
        return LearnerGroup([LocalWorker(build_learner(config, build_model(config), clock))], timeout_s)
    workers = [runtime.spawn(where.engines + rank) for rank in range(where.learners)]
    meeting = workers[0].init_method(config.engines.start_timeout_s)
    for rank, worker in enumerate(workers):
        worker.build(host_learner, config, where.learner_threads, rank, where.learners, meeting)
    return LearnerGroup(workers, timeout_s)


def host_engine(config: Config, threads: int) -> Engine:
    """A scoring engine, in the process that calls this."""
    cpu.prepare(threads)
    if config.engines.type == "vllm":
        from sacglam.scoring.vllm.engine import vllm_engine

        return vllm_engine(config.model_copy(update={"threads": threads}))
    model = build_model(config)
    return PackedEngine(model.lm, model.tokenizer, model.policy)


def host_learner(config: Config, threads: int, rank: int, world: int, meeting: str) -> Learner:
    """A learner rank, in the process that calls this, after it has met the others at the `meeting` point."""
    from sacglam.learner.deepspeed import init_distributed

    cpu.prepare(threads)
    init_distributed(rank, world, meeting, config.device, config.learners.timeout_s)
    return build_learner(config, build_model(config), PhaseClock())


def first_states(config: Config, count: int = 64) -> list[Query]:
    """First observations of fixed training episodes: where policies are compared, and temperatures chosen."""
    env = build_env(config)
    starts = RandomStarts(env.goals("train"), np.random.default_rng(_FIRST_STATES_SEED))
    chosen = itertools.islice(starts, count)
    prompt = Prompt(config.prompt)
    return [prompt(start.goal, env.reset(start.goal, start.seed)) for start in chosen]


def build_env(config: Config) -> TextEnv:
    """One environment, in a worker process if there are some."""
    env = config.env
    return in_workers(env.name, env.options, env.workers) if env.workers else make(env.name, **env.options)


def build_model(config: Config) -> AgentModel:
    """The model with fresh adapters and heads, seeded by `config.seed` through torch's global generator."""
    torch.manual_seed(config.seed)
    loaded = load_model(config.model, torch.device(config.device))
    architecture, critic = loaded.architecture, config.critic
    sharded = config.learners.count > 0 and config.learners.zero_stage == 3
    merged = not sharded and merges(config.model, loaded.config)
    lm = PackedLM(loaded.model, lora_config(config.model, loaded.config), config.algo.adapters(critic), merged)
    if config.model.compile:
        lm.compile_layers()
    if config.model.cache_mib:
        lm.keep_frozen(config.model.cache_mib << 20)
        check_frozen(lm, config.model.name)
    ends, prompt = (config.policy.score_eos, architecture.prompt_eos), Prompt(config.prompt)
    tokenizer = QueryTokenizer(loaded.tokenizer, loaded.max_tokens, *ends, prompt)
    policy = PolicyHead.of(config.policy)
    weight = critic.score_weight / policy.temperature  # of the score that the policy reads
    settings = critic.model_copy(update={"score_weight": weight})
    return config.algo.model(lm, tokenizer, policy, settings, config.device)


def critic_settings(config: Config) -> dict[str, Any]:
    """What the critic's heads are, the prompt, and how scores become the policy, for readers of an exported agent."""
    read = {key: config.model_dump(mode="json")[key] for key in ("policy", "prompt")}
    if not config.algo.has_q:
        critic = config.critic.model_dump(mode="json", include={"backbone", "hidden"})
        return {"value": "state", **critic, **read}
    return {"value": "action", **config.critic.model_dump(mode="json"), **read}


def build_learner(config: Config, model: AgentModel, clock: PhaseClock) -> Learner:
    """The learner of `model`; with `learners.count`, that of this process's rank.

    The process has then joined the others by `sacglam.learner.deepspeed.init_distributed`. The same seed gives every
    rank the same weights, and the same as in one process.
    """
    intervals = -(-max(0, config.steps - config.random_steps) // config.algo.update_interval)
    updates = intervals * config.algo.updates
    algorithm = config.algo.build(model, updates, np.random.default_rng([config.seed, _SHUFFLES]), clock)
    scorer, backend = scorer_of(model), _backend(model, config)
    return Learner(model, algorithm, scorer, backend, config.algo, updates, critic_settings(config), clock)


def scorer_of(model: AgentModel) -> PackedScorer:
    """The policy of `model` at many states."""
    return PackedScorer(model.lm, model.tokenizer, model.policy)


def _backend(model: AgentModel, config: Config) -> Backend:
    groups, limit = (model.actor_parameters(), model.critic_parameters()), config.algo.max_grad_norm
    if not config.learners.count:
        return TorchBackend(groups, limit)
    from sacglam.learner.deepspeed import DeepSpeedBackend

    return DeepSpeedBackend(model.module, model.learned(), groups, limit, config.learners.zero_stage)


def build_experience(config: Config, env: TextEnv, rng: np.random.Generator) -> Experience:
    """What the algorithm keeps of its rollouts, for the goals of `env`."""
    if config.algo.on_policy:
        return OnPolicy()
    goal_types = Counter(env.goal_type(goal) for goal in env.goals("train"))
    buffer = ReplayBuffer(config.replay, env.goal_type, goal_types)
    return HindsightReplay(buffer, rng, config.replay, Cut(config.algo, config.prompt.history))
