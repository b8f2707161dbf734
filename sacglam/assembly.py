"""From a configuration to the parts of a training, in one process or in many. Everything is wired here."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch

from sacglam import cpu
from sacglam.build import Observe, as_it_is, build_brain, build_env, build_experience, build_learner, learner_on
from sacglam.clock import PhaseClock
from sacglam.config import Config
from sacglam.errors import ConfigError, ModelError
from sacglam.learner.host import LearnerHost
from sacglam.models.loading import load_shape
from sacglam.policy import SamplingPolicy
from sacglam.prompt import query
from sacglam.replay.experience import Experience
from sacglam.rollout import RandomStarts, Rollout
from sacglam.runtime.engines import EngineGroup
from sacglam.runtime.group import LocalWorker
from sacglam.runtime.handoff import EngineHandoff, Handoff
from sacglam.runtime.learners import LearnerGroup
from sacglam.runtime.placement import Machine, Plan, plan
from sacglam.runtime.ray import RayRuntime, WorkerSpec
from sacglam.scoring.base import Engine, Scorer
from sacglam.scoring.packed import PackedEngine
from sacglam.types import Query

PARITY_TOLERANCES = {"float32": 1e-4, "bfloat16": 0.05}
_PARITY_SEED, _PARITY_STATES = 0x9A217, 8


@dataclass(frozen=True)
class Parts:
    """What the training loop works with."""

    learners: LearnerGroup
    scorer: Scorer
    handoff: Handoff
    experience: Experience
    rollout: Rollout
    starts: RandomStarts
    policy: SamplingPolicy
    clock: PhaseClock
    processes: Processes | None = None  # those beside the driver's

    def close(self) -> None:
        """End all processes but this one."""
        if self.processes:
            self.processes.runtime.close()


@dataclass(frozen=True)
class Processes:
    """What runs beside the driver."""

    runtime: RayRuntime
    engines: EngineGroup


def build(config: Config, note: Callable[[str], None] = print, observe: Observe = as_it_is) -> Parts:
    """All parts of one training, seeded by `config.seed`; starts the processes it asks for, and waits for none.

    Sets this process's thread count. `note` tells the user of an engine's restart; `observe` is as for `build_brain`,
    for the model of this process.
    """
    cpu.prepare(config.threads or 1)  # with engines, 0 leaves threads to the placement of each process
    clock = PhaseClock()
    if not config.engines.count:
        brain = build_brain(config, observe)
        learner = learner_on(brain, config, clock)
        learners = LearnerGroup([LocalWorker(LearnerHost(learner, clock))], config.learners.timeout_s)
        scorer = brain.scorer(lambda: learner.updates)
        return _assemble(config, clock, learners, scorer, Handoff(), None)
    return build_distributed(config, clock, note)


def _assemble(
    config: Config,
    clock: PhaseClock,
    learners: LearnerGroup,
    scorer: Scorer,
    handoff: Handoff,
    processes: Processes | None,
) -> Parts:
    """What is the same wherever learner and engines run."""
    policy_rng, starts_rng, replay_rng = map(np.random.default_rng, np.random.SeedSequence(config.seed).spawn(3))
    envs = [build_env(config) for _ in range(config.env.copies)]
    starts, policy = RandomStarts(envs[0].goals("train"), starts_rng), SamplingPolicy(policy_rng)
    return Parts(
        learners=learners,
        scorer=scorer,
        handoff=handoff,
        experience=build_experience(config, envs[0], replay_rng),
        rollout=Rollout(envs, scorer, policy, starts, clock),
        starts=starts,
        policy=policy,
        clock=clock,
        processes=processes,
    )


def build_distributed(config: Config, clock: PhaseClock, note: Callable[[str], None]) -> Parts:
    """Engines, and learner ranks if there are any, in processes of their own that Ray places."""
    where = plan(config, machine())
    if where.fault:
        raise ConfigError(where.fault)
    serves_vllm(config)  # what it refuses is refused before anything is started
    on_gpu = config.device != "cpu"
    engine = WorkerSpec("Engine", where.engine_threads, where.tensor_parallel if on_gpu else 0)
    learner = WorkerSpec("LearnerRank", where.learner_threads, 1 if on_gpu else 0)
    runtime = RayRuntime(config.runtime.address, [engine] * where.engines + [learner] * where.learners)
    try:
        engines = EngineGroup(
            lambda index: runtime.spawn(index).build(host_engine, config, where.engine_threads),
            where.engines,
            timeout_s=config.engines.timeout_s,
            start_timeout_s=config.engines.start_timeout_s,
            max_restarts=config.engines.max_restarts,
            note=note,
        )
        learners = _start_learners(runtime, config, where, clock)
        handoff = EngineHandoff(
            engines,
            _fixed_states(config),
            tolerance=config.engines.parity_tolerance or PARITY_TOLERANCES[config.model.dtype],
            every=config.engines.parity_every * config.algo.updates_per_interval,
            clock=clock,
        )
        return _assemble(config, clock, learners, engines, handoff, Processes(runtime, engines))
    except BaseException:
        runtime.close()
        raise


def _start_learners(runtime: RayRuntime, config: Config, where: Plan, clock: PhaseClock) -> LearnerGroup:
    timeout_s = config.learners.timeout_s
    if not where.learners:  # the driver learns, on its own clock
        cpu.prepare(where.learner_threads)
        return LearnerGroup([LocalWorker(LearnerHost(build_learner(config, clock), clock))], timeout_s)
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
    brain = build_brain(config)
    return PackedEngine(brain.lm, brain.tokenizer, brain.policy)


def serves_vllm(config: Config) -> bool:
    """Whether engines are vLLM's here: `auto` takes it where it is installed and serves the model.

    Raises:
        ModelError: vLLM is asked for by name, for a model that is no decoder; or the model cannot be found.
    """
    if config.engines.type == "packed":
        return False
    decodes = not load_shape(config.model).is_encoder_decoder
    if config.engines.type == "auto":
        return decodes and config.model.quantize == "none" and find_spec("vllm") is not None
    if not decodes:
        raise ModelError(
            f"model {config.model.name!r} is an encoder-decoder, which vLLM does not serve; expected engines.type auto "
            "or packed (our own forward pass, in a process of its own), got vllm"
        )
    return True


def host_learner(config: Config, threads: int, rank: int, world: int, meeting: str) -> LearnerHost:
    """A learner rank, in the process that calls this, together with the others at the `meeting` point."""
    from sacglam.learner.deepspeed import init_distributed

    cpu.prepare(threads)
    init_distributed(rank, world, meeting, config.device, config.learners.timeout_s)
    clock = PhaseClock()
    return LearnerHost(build_learner(config, clock), clock, first=rank == 0)


def machine() -> Machine:
    """What this machine has to place processes on."""
    return Machine(gpus=torch.cuda.device_count(), cores=cpu.cores())


def _fixed_states(config: Config) -> list[Query]:
    """The states at which engines and learner are compared: first observations of fixed episodes."""
    env = build_env(config)
    starts = RandomStarts(env.goals("train"), np.random.default_rng(_PARITY_SEED))
    chosen = itertools.islice(starts, _PARITY_STATES)
    return [query(start.goal, env.reset(start.goal, start.seed)) for start in chosen]
