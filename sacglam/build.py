"""From a configuration to the parts of a run, in one process or in many. Everything is wired here."""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from sacglam import cpu
from sacglam.clock import PhaseClock
from sacglam.config import Config
from sacglam.envs import TextEnv, make
from sacglam.envs.workers import in_workers
from sacglam.errors import ConfigError, ModelError
from sacglam.learner.backend import Backend, TorchBackend
from sacglam.learner.learner import Learner
from sacglam.models.agent_model import AgentModel
from sacglam.models.heads import PolicyHead
from sacglam.models.loading import load_model, load_shape, lora_config
from sacglam.models.packed_lm import PackedLM
from sacglam.models.packing_check import check_frozen
from sacglam.models.tokens import QueryTokenizer
from sacglam.policy import SamplingPolicy, opening_temperature
from sacglam.prompt import Prompt
from sacglam.replay.buffer import ReplayBuffer
from sacglam.replay.experience import Experience, HindsightReplay, OnPolicy
from sacglam.replay.hindsight import Cut
from sacglam.rollout import RandomStarts, Rollout
from sacglam.runtime.devices import in_one_process, machine, resolve_device
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
OPEN_SHARE = 0.5
"""Share of the random policy's entropy at which `policy.temperature: auto` opens a policy."""
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
    if where.engines:
        serves_vllm(config)  # what it refuses is refused before anything is started
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
    if serves_vllm(config):
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


def settle_engine(config: Config) -> Config:
    """`config` with a kind of engine in place of `auto`: vLLM's where it is installed and serves the model.

    Raises:
        ModelError: as `serves_vllm`.
    """
    if not config.engines.count or config.engines.type != "auto":
        return config
    engines = config.engines.model_copy(update={"type": "vllm" if serves_vllm(config) else "packed"})
    return config.model_copy(update={"engines": engines})


def serves_vllm(config: Config) -> bool:
    """Whether engines are vLLM's here: `auto` takes it where it is installed and serves the model.

    Raises:
        ModelError: vLLM is asked for by name or by `engines.tensor_parallel`, and cannot serve the model; or the model
            cannot be found.
    """
    if config.engines.type == "packed":
        return False
    obstacle = _obstacle_to_vllm(config)
    if config.engines.type == "auto" and config.engines.tensor_parallel == 1:
        return obstacle is None and find_spec("vllm") is not None
    if obstacle:
        raise ModelError(
            f"vLLM cannot serve model {config.model.name!r}: {obstacle}; expected engines.type auto or packed (our own "
            "forward pass, in a process of its own) and engines.tensor_parallel 1"
        )
    return True


def why_no_vllm(config: Config) -> str | None:
    """Why there can be no vLLM engines here; None if there can."""
    return _obstacle_to_vllm(config) if find_spec("vllm") else "vLLM is not installed"


def _obstacle_to_vllm(config: Config) -> str | None:
    """Why vLLM cannot serve the model on this machine's device; None if it can."""
    if load_shape(config.model).is_encoder_decoder:
        return "it is an encoder-decoder"
    if config.model.quantize != "none":
        return f"model.quantize is {config.model.quantize}"
    if resolve_device(config) == "cpu":
        return None
    if config.model.dtype == "float32":
        return "on GPUs its LoRA kernels compute in 16 bits only, and model.dtype is float32 (bfloat16 would do)"
    # In a cluster the driver may have no GPU; each engine then decides on its own.
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0):
        return f"{torch.cuda.get_device_name()} has no bfloat16, which begins with compute capability 8.0"
    return None


def first_states(config: Config, count: int = 64) -> list[Query]:
    """First observations of fixed training episodes: where policies are compared, and temperatures chosen."""
    env = build_env(config)
    starts = RandomStarts(env.goals("train"), np.random.default_rng(_FIRST_STATES_SEED))
    chosen = itertools.islice(starts, count)
    prompt = Prompt(config.prompt)
    return [prompt(start.goal, env.reset(start.goal, start.seed)) for start in chosen]


def resolve_temperature(config: Config) -> Config:
    """`config` with a number for `policy.temperature: auto`, which all processes of a run then share.

    Where the learner is in other processes the model is loaded once more, on the CPU.
    """
    if config.policy.temperature != "auto":
        return config
    open_at = config.policy.model_copy(update={"temperature": 1.0})
    here = in_one_process(config, "cpu" if config.learners.count else config.device)
    cpu.prepare(here.threads or cpu.default_threads())
    policies = _scorer(build_model(here.model_copy(update={"policy": open_at}))).log_policy(first_states(config))
    found = opening_temperature(policies, OPEN_SHARE)
    return config.model_copy(update={"policy": open_at.model_copy(update={"temperature": found})})


def build_env(config: Config) -> TextEnv:
    """One environment, in a worker process if there are some."""
    env = config.env
    return in_workers(env.name, env.options, env.workers) if env.workers else make(env.name, **env.options)


def build_model(config: Config) -> AgentModel:
    """The model with fresh adapters and heads, seeded by `config.seed` through torch's global generator."""
    torch.manual_seed(config.seed)
    loaded = load_model(config.model, torch.device(config.device))
    architecture, critic = loaded.architecture, config.critic
    lm = PackedLM(
        loaded.model,
        lora_config(config.model, loaded.config),
        config.algo.adapters(critic),
        bucket=config.model.bucket,
        merged=config.model.lora.merged,
    )
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
    scorer, backend = _scorer(model), _backend(model, config)
    return Learner(model, algorithm, scorer, backend, config.algo, updates, critic_settings(config), clock)


def _scorer(model: AgentModel, version: Callable[[], int] = lambda: 0) -> PackedScorer:
    return PackedScorer(model.lm, model.tokenizer, model.policy, version)


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
