"""Settles what a configuration leaves open, once, before anything starts."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from sacglam import cpu
from sacglam.build import build_model
from sacglam.collector import build_env, first_states
from sacglam.config import Config
from sacglam.config.experiment import DERIVED
from sacglam.config.sections import EnginesConfig, LearnersConfig, RuntimeConfig
from sacglam.envs import check_env
from sacglam.errors import ConfigError, ModelError
from sacglam.models.heads import PolicyHead
from sacglam.models.loading import load_shape
from sacglam.policy import opening_score_weight, opening_temperature
from sacglam.recording import record
from sacglam.scoring.base import UniformScorer
from sacglam.types import LogPolicy

OPEN_SHARE = 0.5
"""`policy.temperature: auto` raises the initial policy's entropy to this share of the random policy's."""
_EPISODES_TO_SCALE = 16
_NARROW = 256  # hidden size up to which a second thread gains little, and loses much where cores are shared
_EPISODES_OF_A_COPY, _LONGEST_EPISODE = 6, 500  # episodes the budget leaves each copy; steps after which a trial ends


def resolve(config: Config, note: Callable[[str], None] = lambda text: None) -> Config:
    """The configuration of a run: device, threads, the folder of a local model, copies, temperature, weight of scores.

    Values that are already settled stay, so a resumed run keeps its own. `note` gets lines for the user.

    Raises:
        ConfigError: this machine has no such device.
        ModelError: the model cannot be found, or engines are configured and vLLM cannot serve it.
    """
    if config.partner.needs_steps >= config.steps > 0:
        labelled = f"all {config.steps:,} steps are among the first {config.partner.needs_steps:,}"
        note(f"partner {config.partner.type}: {labelled}, which the environment judges")
    settled = on_this_machine(config)
    check_engines(settled)
    return with_scores(with_reward_scale(with_copies(settled), note))


def derived(config: Config, resolved: Config) -> dict[str, Any]:
    """The values that `resolve` settled and that affect learning, by setting."""
    return {key: now for key in DERIVED if (now := attrgetter(key)(resolved)) != attrgetter(key)(config)}


def with_copies(config: Config) -> Config:
    """`config` with `env.copies: 0` replaced by a power of two that leaves each copy six episodes, if possible.

    With 32 copies and episodes of 200 steps, hardly any episode ends in the first 6,400 steps.
    """
    if config.env.copies:
        return config
    trial = check_env(lambda: build_env(config), episodes=4, repeats=False, steps=_LONGEST_EPISODE, expert=False)
    most = max(1.0, config.steps / (_EPISODES_OF_A_COPY * trial.longest))
    copies = next(size for size in (32, 16, 8, 4, 2, 1) if size <= most and not config.algo.update_interval % size)
    return config.model_copy(update={"env": config.env.model_copy(update={"copies": copies})})


def with_reward_scale(config: Config, note: Callable[[str], None] = lambda text: None) -> Config:
    """`config` with `algo.reward_scale` estimated from a few random episodes, if there are rewards to scale."""
    if config.env.reward == "goal" or config.algo.reward_scale:
        return config
    played = record(lambda: build_env(config), UniformScorer(), _EPISODES_TO_SCALE, repeats=config.env.repeats)
    sizes = list[float]()  # of the returns from each step on
    for episode in played:
        return_ = 0.0
        for step in reversed(episode.steps):
            return_ = step.reward + config.algo.gamma * return_
            sizes.append(abs(return_))
    size = max(*sizes, abs(config.env.success_reward or 0.0))
    if not size:
        note("random episodes earned nothing, so rewards are not scaled; if they are large, set algo.reward_scale")
    scale = float(f"{1 / size:.2g}") if size else 1.0
    return config.model_copy(update={"algo": config.algo.model_copy(update={"reward_scale": scale})})


def on_this_machine(config: Config) -> Config:
    """`config` with this machine's device and threads, and absolute paths.

    With absolute paths, a run can be resumed from any directory.

    Raises:
        ConfigError: this machine has no such device, or its system lacks what the configuration needs.
    """
    if not config.in_one_process and sys.platform != "linux":
        raise ConfigError("engines and learner ranks need Linux; here, set engines.count and learners.count to 0")
    device, model, path = resolve_device(config), config.model, config.model.path
    if not config.learners.count:  # the learner runs here
        check_device(device)
    if path:
        model = model.model_copy(update={"name": str(path.resolve())})
    file, origin = (name and str(Path(name).resolve()) for name in (config.replay.demonstrations, config.init_from))
    here = {"device": device, "threads": threads(config), "model": model, "init_from": origin}
    return config.model_copy(update={**here, "replay": config.replay.model_copy(update={"demonstrations": file})})


def threads(config: Config) -> int:
    """The configured CPU threads, or the default; 0 with several processes: placement then sets each one's."""
    if config.threads or not config.in_one_process:
        return config.threads
    return 1 if load_shape(config.model).get_text_config().hidden_size <= _NARROW else cpu.default_threads()


def resolve_device(config: Config) -> str:
    """The configured device, or what `auto` means on this machine."""
    if config.device != "auto":
        return config.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(device: str) -> None:
    """Refuse (`ConfigError`) a device that this machine lacks."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {device!r} cannot be used here ({error}); use auto or cpu") from error


def in_one_process(config: Config, device: str) -> Config:
    """The same agent on `device`, without engines and learner ranks."""
    alone = {"engines": EnginesConfig(), "learners": LearnersConfig(), "runtime": RuntimeConfig()}
    return config.model_copy(update={"device": device, **alone})


def check_engines(config: Config) -> None:
    """Refuse (`ModelError`) engines for a model that vLLM cannot serve, or that cannot be found."""
    if config.engines.count and (obstacle := _obstacle_to_vllm(config)):
        raise ModelError(
            f"vLLM cannot serve model {config.model.name!r}: {obstacle}; set engines.count to 0 (--engines 0), so that "
            "the learner scores"
        )


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
        return "on GPUs vLLM's LoRA kernels compute in 16 bits only, and model.dtype is float32 (bfloat16 would do)"
    # In a cluster the driver may have no GPU; each engine then decides on its own.
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0):
        return f"{torch.cuda.get_device_name()} does not support bfloat16, which needs compute capability 8.0"
    return None


def with_scores(config: Config) -> Config:
    """`config` with the `auto` values that depend on the untrained model's scores, shared by all processes.

    They are `policy.temperature: auto` and `critic.score_weight: auto`.
    """
    policy, critic = config.policy, config.critic
    weighs = critic.score_weight == "auto" and config.algo.has_q
    if not weighs and policy.temperature != "auto":
        return config
    # If the learner runs in other processes, the model is loaded here as well, on the CPU.
    here = in_one_process(config, "cpu" if config.learners.count else config.device)
    cpu.prepare(here.threads or cpu.cores())
    untrained = {
        "policy": policy.model_copy(update={"temperature": 1.0}),
        "critic": critic.model_copy(update={"score_weight": 0.0}),
    }
    model, states = build_model(here.model_copy(update=untrained)), first_states(config)

    def policies(length_normalised: bool) -> list[LogPolicy]:
        model.policy = PolicyHead(length_normalised)
        return model.log_policy(states)

    if policy.temperature == "auto":
        temperature = opening_temperature(policies(policy.length_normalised), OPEN_SHARE)
        policy = policy.model_copy(update={"temperature": temperature})
    if weighs:
        assert policy.temperature != "auto"
        weight = opening_score_weight(policies(False), policy.temperature)
        critic = critic.model_copy(update={"score_weight": weight})
    return config.model_copy(update={"policy": policy, "critic": critic})
