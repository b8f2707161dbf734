"""Which process runs where: a plan, made before anything starts."""

import os
from dataclasses import dataclass

from sacglam import cpu
from sacglam.config import Config
from sacglam.errors import ConfigError

# A learner does the arithmetic of 64 forward passes for each pass of the rollout (docs/guides/profiling.md), so one
# engine keeps up with many ranks. Beyond this many GPUs the engine's overhead calls for a second one.
_GPUS_PER_ENGINE = 8


@dataclass(frozen=True)
class Machine:
    """The machine's GPUs, and the CPU cores of this process."""

    gpus: int
    cores: int


def machine() -> Machine:
    """What this machine has to place processes on."""
    import torch  # here, since the command line places processes before it loads torch

    return Machine(gpus=torch.cuda.device_count(), cores=cpu.cores())


def cluster() -> str | None:
    """The Ray cluster to join, by the variable that Ray itself reads; None: start Ray on this machine."""
    address = os.environ.get("RAY_ADDRESS")
    return None if address in ("", "local") else address


@dataclass(frozen=True)
class Plan:
    """How many processes of each kind, and what each takes; docs/guides/gpus.md says why."""

    engines: int
    learners: int
    tensor_parallel: int
    device: str
    engine_threads: int
    learner_threads: int
    note: str | None = None  # what the user should know
    fault: str | None = None  # why it cannot run here

    def describe(self) -> str:
        """The plan as text."""
        gpu = self.device != "cpu"
        thing = "GPU" if gpu else "CPU thread"
        if not (self.engines or self.learners):
            parts = [
                f"one process on {self.device}, {counted(self.learner_threads, 'thread')}: rollout, scoring and learner"
            ]
        else:
            engine = counted(self.tensor_parallel if gpu else self.engine_threads, thing)
            learner = counted(1 if gpu else self.learner_threads, thing)
            parts = ["driver: environments, replay, loop"]
            if self.engines:
                parts.append(f"{counted(self.engines, 'scoring engine')} with {engine} each")
            if self.learners:
                work = "" if self.engines else ", which also score"
                parts.append(f"{counted(self.learners, 'learner rank')} with {learner} each{work}")
            else:
                parts.append(f"learner in the driver, {counted(self.learner_threads, 'thread')}")
        parts += [f"  {self.note}"] if self.note else []
        parts += [f"cannot run here: {self.fault}"] if self.fault else []
        return "\n".join(parts)


def counted(number: int, noun: str) -> str:
    """`2 engines`, `1 engine`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def split_gpus(
    gpus: int, tensor_parallel: int = 1, engines: int | None = None, learners: int | None = None, vllm: bool = True
) -> tuple[int, int]:
    """Numbers of engines and learner ranks on `gpus` GPUs, given both numbers, one or neither.

    Without `vllm` to serve the model there are no engines, and ranks on all GPUs score and learn.

    Raises:
        ConfigError: they take more GPUs than there are.
    """
    if engines is None and not vllm:
        engines = 0
    elif engines is None and learners is not None:
        engines = max(0, gpus - learners) // tensor_parallel
    elif engines is None:
        engines = -(-gpus // _GPUS_PER_ENGINE) if gpus > 1 else 0
        if engines and gpus <= engines * tensor_parallel:
            raise ConfigError(
                f"expected more than {engines * tensor_parallel} GPUs for {counted(engines, 'engine')} of "
                f"{counted(tensor_parallel, 'GPU')} and a learner, got {gpus}"
            )
    if learners is None:
        learners = max(0, gpus - engines * tensor_parallel) if gpus > 1 else 0
    taken = engines * tensor_parallel + learners
    if taken > gpus:
        processes = f"{counted(engines, 'engine')} and {counted(learners, 'learner rank')}"
        raise ConfigError(f"{processes} take {counted(taken, 'GPU')}, got --gpus {gpus}")
    return engines, learners


def plan(config: Config, machine: Machine) -> Plan:
    """Place the processes of `config` on `machine`; a cluster's own resources are checked when it is joined."""
    if config.in_one_process:
        return Plan(0, 0, 1, config.device, 1, config.threads or min(4, machine.cores))
    engines, learners, parallel = config.engines.count, config.learners.count, config.engines.tensor_parallel
    ranks = max(1, learners)  # or the driver's own learner
    engine_threads = learner_threads = max(1, machine.cores // (engines + ranks))
    note = fault = None
    if config.device == "cpu":
        # One core for each engine, whose forward passes are few.
        engine_threads, learner_threads = 1, max(1, (machine.cores - engines) // ranks)
        if parallel > 1:
            fault = "engines.tensor_parallel spreads an engine over GPUs, and device is cpu; set it to 1"
        if engines + ranks > machine.cores:
            note = "there are more processes than cores: it works, but every one of them is slower"
    elif learners == 0 and engines * parallel == 1 and machine.gpus == 1:
        note = f"engine and learner share the only GPU: {config.engine_memory:.0%} of its memory is the engine's"
    elif learners == 0:
        fault = (
            "a learner in the driver's process would share a GPU with an engine; give it one of its own "
            "with learners.count 1 (--learners 1)"
        )
    elif cluster() is None and (needed := engines * parallel + learners) > machine.gpus:
        fault = (
            f"expected {needed} GPUs (engines: {engines} x {parallel}, learner ranks: {learners}), this machine "
            f"has {machine.gpus}; request fewer, join a cluster with RAY_ADDRESS, or use --device cpu"
        )
    threads = config.threads or learner_threads
    return Plan(engines, learners, parallel, config.device, engine_threads, threads, note, fault)


def overrides(
    gpus: int | None,
    engines: int | None,
    learners: int | None,
    tensor_parallel: int | None,
    device: str | None,
    vllm: bool = True,
) -> list[str]:
    """The command line's placement options as configuration overrides; `gpus` determines the numbers left out.

    `vllm`: whether it is installed and serves the model.

    Raises:
        ConfigError: `gpus` contradicts `device`, or is too small.
    """
    if gpus is not None:
        if device not in (None, "cuda"):
            raise ConfigError(f"--gpus goes with --device cuda, got --device {device}; leave one of them out")
        device = "cuda" if gpus else "cpu"
        engines, learners = split_gpus(gpus, tensor_parallel or 1, engines, learners, vllm)
    given = {
        "engines.count": engines,
        "learners.count": learners,
        "engines.tensor_parallel": tensor_parallel or (1 if engines == 0 else None),
        "device": device,
        "runtime.lag": 0 if 0 in (engines, learners) else None,  # nothing can overlap
    }
    return [f"{key}={value}" for key, value in given.items() if value is not None]
