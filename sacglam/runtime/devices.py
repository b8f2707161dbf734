"""What a configuration leaves to the machine: device, threads, GPUs and cores."""

from pathlib import Path

import torch

from sacglam import cpu
from sacglam.config import Config, EnginesConfig, LearnersConfig, ModelConfig, RuntimeConfig
from sacglam.errors import ConfigError
from sacglam.runtime.placement import Machine


def on_this_machine(config: Config) -> Config:
    """The configuration with device and threads of this machine, and a local model as an absolute path.

    Raises:
        ConfigError: this machine has no such device.
    """
    device = resolve_device(config)
    if not config.learners.count:  # the learner runs here
        check_device(device)
    threads = config.threads or (cpu.default_threads() if config.in_one_process else 0)
    return config.model_copy(update={"device": device, "threads": threads, "model": absolute(config.model)})


def absolute(model: ModelConfig) -> ModelConfig:
    """With a local model as an absolute path, so that a run can be resumed from any directory."""
    path = Path(model.name)
    local = path.is_dir() or path.suffix == ".gguf"
    return model.model_copy(update={"name": str(path.resolve())}) if local else model


def resolve_device(config: Config) -> str:
    """The device that is named, or what `auto` means on this machine."""
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


def in_one_process(config: Config, device: str) -> Config:
    """The same agent on `device`, without engines and learner ranks."""
    alone = {"engines": EnginesConfig(), "learners": LearnersConfig(), "runtime": RuntimeConfig()}
    return config.model_copy(update={"device": device, **alone})


def machine() -> Machine:
    """What this machine has to place processes on."""
    return Machine(gpus=torch.cuda.device_count(), cores=cpu.cores())
