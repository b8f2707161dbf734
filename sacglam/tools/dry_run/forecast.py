"""The whole of a dry run: load what a training loads, try it for a minute, and work out the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from transformers import PreTrainedConfig

from sacglam import cpu
from sacglam.build import build_model, serves_vllm
from sacglam.config import Config
from sacglam.errors import ConfigError, ModelError
from sacglam.models.loading import load_shape
from sacglam.runs.display import Display
from sacglam.runtime.devices import check_device, in_one_process, machine, resolve_device
from sacglam.runtime.placement import Plan, plan
from sacglam.tools.dry_run.calibrate import Calibration, calibrate
from sacglam.tools.dry_run.predict import predict
from sacglam.tools.dry_run.random_rollout import RandomRollout, play
from sacglam.tools.dry_run.sizes import Process, Sizes, memory, sizes_of
from sacglam.tools.profile.memory import resident_bytes


@dataclass(frozen=True)
class Model:
    """What was loaded."""

    kind: str
    sizes: Sizes


@dataclass(frozen=True)
class Forecast:
    """What is known of a training before it is begun."""

    config: Config
    where: Plan
    missing: Sequence[str]
    """What it needs and does not find here; it could not start."""
    played: RandomRollout
    model: Model | None
    calibration: Calibration | None
    processes: Sequence[Process]
    seconds: Mapping[str, float]
    """By phase; empty where nothing could be measured."""


def placed(config: Config) -> tuple[Config, Plan]:
    """`config` with its device and kind of engine settled, and which process would run where."""
    kind = config.engines
    if kind.count and kind.type == "auto":
        with suppress(ModelError):  # which `forecast` tells
            kind = kind.model_copy(update={"type": "vllm" if serves_vllm(config) else "packed"})
    settled = config.model_copy(update={"device": resolve_device(config), "engines": kind})
    return settled, plan(settled, machine())


def forecast(config: Config, where: Plan, display: Display) -> Forecast:
    """Load the model of `config` (from `placed`), calibrate, predict. Writes nothing; leaves what is missing open.

    Raises:
        SacglamError: the environment cannot be made, or the model, once loaded, fails.
    """
    cpu.prepare(where.learner_threads)
    libraries = resident_bytes()
    missing = [where.fault] if where.fault else []
    device = config.device
    try:
        check_device(device)
    except ConfigError as error:
        missing.append(str(error))
        device = ""
    display.stage("playing the random policy", 1)
    played = play(config)
    here = in_one_process(config, device or "cpu").model_copy(update={"threads": where.learner_threads})
    display.stage(f"loading {config.model.name}", 1)
    try:
        shape, agent = load_shape(config.model), build_model(here)
    except ModelError as error:
        return Forecast(config, where, [*missing, str(error)], played, None, None, (), {})
    model = Model(_kind(shape), sizes_of(agent))
    found = calibrate(here, agent, played, display) if device else None
    processes = memory(config, where, model.sizes, found, played.replay_bytes, libraries)
    seconds = predict(config, where, played, found) if found else {}
    return Forecast(config, where, missing, played, model, found, processes, seconds)


def _kind(shape: PreTrainedConfig) -> str:
    """An architecture in words."""
    text = shape.get_text_config()
    if shape.is_encoder_decoder:
        layers = f"encoder-decoder of {text.num_layers} + {text.num_decoder_layers} layers"
    else:
        layers = f"decoder-only, {text.num_hidden_layers} layers"
    return f"{shape.model_type}, {layers}, {text.hidden_size} wide"
