"""Builds the parts of a run from its configuration, in one process or many. Everything is wired here."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sacglam import cpu, plugins
from sacglam.clock import PhaseClock
from sacglam.collector import Collector, collector, first_states
from sacglam.config import Config
from sacglam.errors import ConfigError
from sacglam.learner.backend import Backend
from sacglam.learner.learner import Learner
from sacglam.models.agent_model import AgentModel, load_exported
from sacglam.models.heads import PolicyHead
from sacglam.models.loading import load_model, lora_config, merges
from sacglam.models.packed_lm import PackedLM
from sacglam.models.packing_check import keep_states
from sacglam.models.tokens import QueryTokenizer
from sacglam.partners import Partner
from sacglam.prompt import Prompt
from sacglam.runs.exported import exported_in, settings_of
from sacglam.runtime.engines import EngineGroup
from sacglam.runtime.group import Worker, gather
from sacglam.runtime.handoff import Handoff
from sacglam.runtime.learners import LearnerGroup
from sacglam.runtime.placement import Plan, cluster, machine, plan
from sacglam.runtime.ray import RayRuntime, WorkerSpec
from sacglam.scoring.base import Engine, Scorer

ENGINE = "sacglam.scoring.vllm.engine:vllm_engine"
"""Makes an engine from a configuration, in the engine's own process."""
TIMEOUT_S = 3600.0
"""Seconds that an engine's scores or an interval's updates may take before the process is considered hung."""
PARITY_TOLERANCES = {"float32": 1e-4, "bfloat16": 0.15}  # docs/method/distributed.md says why
PARITY_EVERY = 10
"""Adapters between checks that engines and learner have the same policy; the first adapter is always checked."""
_PARITY_STATES = 8
_PARTNER = 0x9A47E4  # the stream of a partner's own draws
_SHUFFLES = 0x5F0FF1E  # the stream of an algorithm's own draws, such as PPO's minibatches


@dataclass(frozen=True)
class Parts:
    """What the loop works with."""

    learners: LearnerGroup
    collector: Collector
    partner: Partner
    clock: PhaseClock
    runtime: RayRuntime | None = None
    """The processes other than the driver, if there are any."""
    handoff: Handoff | None = None
    """The engines, and how they get adapters; None where the learner scores."""

    @property
    def scorer(self) -> Scorer:
        """Where the rollout gets its policy from."""
        return self.collector.rollout.scorer

    def metrics(self, version: int) -> dict[str, float]:
        """Metrics of experience, goals and partner after `version` updates."""
        return self.collector.experience.metrics(version) | self.collector.goals.metrics() | self.partner.metrics()

    def processes(self, config: Config) -> dict[str, Any]:
        """The summary's entries on processes other than the driver."""
        apart = self.learners.seconds() if config.learners.count else {}  # else the driver learns, on its own clock
        return {
            "engines": config.engines.count,
            "learners": config.learners.count,
            "engine_restarts": self.handoff.engines.restarts if self.handoff else 0,
            "learner_seconds": {name: round(each, 3) for name, each in apart.items()},
        }

    def close(self) -> None:
        """End all processes except this one."""
        if self.runtime:
            self.runtime.close()


def build(config: Config, note: Callable[[str], None] = print) -> Parts:
    """All parts of one run, seeded by `config.seed`. Starts its other processes; `Loop.start_up` waits for them.

    Sets this process's thread count. `note` gets lines for the user, such as when an engine restarts.
    """
    cpu.prepare(config.threads or 1)  # 0 with several processes: placement then sets each one's threads
    clock = PhaseClock()
    if config.replay.demonstrations:
        note(f"reading {config.replay.demonstrations} ...")
    if not config.in_one_process:
        torch.manual_seed(config.seed)  # nothing here draws from it, but its state is in the checkpoints
        return _build_distributed(config, clock, note)
    learners = LearnerGroup([Worker(build_learner(config, build_model(config), clock))], TIMEOUT_S)
    return _parts(config, learners, learners, clock)


def _parts(config: Config, learners: LearnerGroup, scorer: Scorer, clock: PhaseClock, **others: Any) -> Parts:
    rng = np.random.default_rng([config.seed, _PARTNER])
    partner = config.partner.build(rng, clock, Prompt(config.prompt), learners)
    return Parts(learners, collector(config, scorer, clock, learners, partner), partner, clock, **others)


def _build_distributed(config: Config, clock: PhaseClock, note: Callable[[str], None]) -> Parts:
    """Engines, learner ranks or both, in separate processes that Ray places."""
    where = plan(config, machine())
    if where.fault:
        raise ConfigError(where.fault)
    on_gpu = config.device != "cpu"
    engine = WorkerSpec("Engine", where.engine_threads, where.tensor_parallel if on_gpu else 0)
    learner = WorkerSpec("LearnerRank", where.learner_threads, 1 if on_gpu else 0)
    runtime = RayRuntime(cluster(), [engine] * where.engines + [learner] * where.learners)

    def start(index: int) -> Worker:
        return runtime.spawn(index).build(host_engine, ENGINE, config, where.engine_threads)

    try:
        # vLLM measures the free memory of its GPU while it starts, so a learner that shares the GPU is loaded first.
        sharing = None if where.learners else _start_learners(runtime, config, where, clock)
        engines = EngineGroup(start, where.engines, TIMEOUT_S, note) if where.engines else None
        learners = sharing or _start_learners(runtime, config, where, clock)
        handoff = None
        if engines:
            tolerance, every = PARITY_TOLERANCES[config.model.dtype], PARITY_EVERY * config.algo.updates
            states, first = first_states(config, _PARITY_STATES), config.replay.demonstration_updates
            handoff = Handoff(engines, states, tolerance, every, clock, first)
        return _parts(config, learners, engines or learners, clock, runtime=runtime, handoff=handoff)
    except BaseException:
        runtime.close()
        raise


def _start_learners(runtime: RayRuntime, config: Config, where: Plan, clock: PhaseClock) -> LearnerGroup:
    if not where.learners:  # the driver learns, on its own clock
        cpu.prepare(where.learner_threads)
        return LearnerGroup([Worker(build_learner(config, build_model(config), clock))], TIMEOUT_S)
    workers = [runtime.spawn(where.engines + rank) for rank in range(where.learners)]
    [meeting] = gather([workers[0].init_method()], TIMEOUT_S)
    for rank, worker in enumerate(workers):
        worker.build(host_learner, config, where.learner_threads, rank, where.learners, meeting)
    return LearnerGroup(workers, TIMEOUT_S)


def host_engine(factory: str, config: Config, threads: int) -> Engine:
    """The scoring engine that `factory` (`module:attribute`) makes, in the calling process."""
    cpu.prepare(threads)
    return plugins.find(factory, "engine")(config.model_copy(update={"threads": threads}))


def host_learner(config: Config, threads: int, rank: int, world: int, meeting: str) -> Learner:
    """A learner rank, in the calling process; it joins the others at `meeting`, a rendezvous URL."""
    from sacglam.learner.deepspeed import init_distributed

    cpu.prepare(threads)
    init_distributed(rank, world, meeting, config.device, TIMEOUT_S)
    return build_learner(config, build_model(config), PhaseClock())


def build_model(config: Config) -> AgentModel:
    """The model with fresh adapters and heads, seeded by `config.seed` through torch's global generator."""
    torch.manual_seed(config.seed)
    loaded = load_model(config.model, torch.device(config.device))
    critic = config.critic
    merged = not config.sharded and merges(config.model, loaded.config)
    model_class = config.algo.rule_class.model_class
    adapters = model_class.adapters(critic) + [name for each in _classifiers(config).values() for name in each.adapters]
    lora, checkpointing = lora_config(config.model, loaded.config), config.model.gradient_checkpointing
    lm = PackedLM(loaded.model, lora, adapters, merged, checkpointing)
    if config.keeps_states:
        keep_states(lm, config.model.name)
    ends, prompt = (config.policy.score_eos, lm.architecture.prompt_eos), Prompt(config.prompt)
    tokenizer = QueryTokenizer(loaded.tokenizer, loaded.max_tokens, *ends, prompt)
    policy = PolicyHead.of(config.policy)
    weight = critic.first_score_weight / policy.temperature  # of the score that the policy reads
    settings = critic.model_copy(update={"score_weight": weight})
    return model_class(lm, tokenizer, policy, settings)


def build_learner(config: Config, model: AgentModel, clock: PhaseClock) -> Learner:
    """The learner of `model`; with `learners.count`, that of this process's rank.

    In that case `sacglam.learner.deepspeed.init_distributed` must have been called. A seed gives every rank the same
    weights as a single process.
    """
    intervals = -(-max(0, config.steps - config.random_steps) // config.algo.update_interval)
    updates = config.replay.demonstration_updates + intervals * config.algo.updates
    rng = np.random.default_rng([config.seed, _SHUFFLES])  # the same on every rank
    algorithm = config.algo.rule_class(model, config.algo, updates, rng, clock)
    backend = _backend(model, config)
    classifiers = {name: each(model, config, backend) for name, each in _classifiers(config).items()}
    learner = Learner(model, algorithm, backend, config.algo, updates, clock, classifiers)
    if config.init_from:
        origin = exported_in(Path(config.init_from))
        with backend.gathered(change=True):
            fits = load_exported(origin, model)
        if not fits:
            warnings.warn(f"the critic of {config.init_from} does not fit; this run's starts untrained", stacklevel=2)
        if changed := _changed(settings_of(origin), config.model_dump(mode="json")):
            warnings.warn(
                f"the agent in {config.init_from} was trained with {', '.join(changed)}; with the settings here, the "
                "same adapter is a different policy",
                stacklevel=2,
            )
    return learner


def _changed(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """The settings that make the same adapter a different policy, with their values in an exported agent and here."""
    changed = list[str]()
    for section in ("policy", "prompt"):
        there = theirs.get(section)
        for key, here in ours[section].items():
            if isinstance(there, dict) and there.get(key, here) != here:
                changed.append(f"{section}.{key} {there[key]!r} (here {here!r})")
    return changed


def _classifiers(config: Config) -> dict[str, Any]:
    """The classes of the classifiers that learn alongside the agent, by name: see `sacglam.learner.classifier`."""
    named = {"judge": config.partner.judge, "competence": config.goals.competence}
    return {name: plugins.find(each, name) for name, each in named.items() if each}


def _backend(model: AgentModel, config: Config) -> Backend:
    groups, limit = (model.actor_parameters(), model.critic_parameters()), config.algo.max_grad_norm
    if not config.learners.count:
        return Backend(groups, limit)
    from sacglam.learner.deepspeed import DeepSpeedBackend

    return DeepSpeedBackend(model.module, model.learned(), groups, limit, config.sharded)
