"""A dry run: loads what a run loads, tries it for a minute and extrapolates the total time."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sacglam import cpu, resolve
from sacglam.build import build_model
from sacglam.collector import build_env
from sacglam.config import Config
from sacglam.errors import ConfigError, ModelError
from sacglam.evaluate import EVALUATIONS_AFTER, SAMPLES, SAMPLES_STEPS
from sacglam.memory import resident_bytes
from sacglam.runs.display import Display
from sacglam.runtime.placement import Plan, machine, plan
from sacglam.tools.dry_run.calibrate import Calibration, RandomRollout, calibrate, play
from sacglam.tools.dry_run.sizes import Process, Sizes, memory, sizes_of

EVALUATION, INITIAL = "evaluation, samples", "initial updates"


@dataclass(frozen=True)
class Forecast:
    """What is known about a run before it starts; parts about the model are empty if it cannot be loaded."""

    config: Config
    missing: Sequence[str]  # requirements missing here, which would keep it from starting
    updates: int  # gradient updates of the whole run
    sizes: Sizes | None = None
    calibration: Calibration | None = None
    processes: Sequence[Process] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)  # by phase; empty if nothing could be measured


def placed(config: Config) -> tuple[Config, Plan]:
    """Resolve the device, copies and scale of rewards of `config`, and decide which process would run where."""
    settled = config.model_copy(update={"device": resolve.resolve_device(config)})
    settled = resolve.with_reward_scale(resolve.with_copies(settled))
    with suppress(ModelError):  # `forecast` says that the model is missing
        settled = settled.model_copy(update={"threads": resolve.threads(settled)})
    return settled, plan(settled, machine())


def forecast(config: Config, where: Plan, display: Display) -> Forecast:
    """Load the model of `config` (from `placed`), calibrate, predict. Writes nothing; leaves out what is missing.

    Raises:
        SacglamError: the environment cannot be made, or the model, once loaded, fails.
    """
    cpu.prepare(where.learner_threads)
    libraries = resident_bytes()
    missing = [where.fault] if where.fault else []
    device = config.device
    try:
        resolve.check_device(device)
    except ConfigError as error:
        missing.append(str(error))
        device = ""
    display.stage("playing the random policy", 1)
    played = play(config)
    here = resolve.in_one_process(config, device or "cpu").model_copy(update={"threads": where.learner_threads})
    display.stage(f"loading {config.model.name}", 1)
    try:
        resolve.check_engines(config)
        here = resolve.with_scores(here)
        model = build_model(here)
    except ModelError as error:
        return Forecast(config, [*missing, str(error)], updates_of(config, played.skipped))
    sizes = sizes_of(model)
    measured = calibrate(here, model, played, display) if device else None
    processes = memory(config, where, sizes, measured, libraries)
    seconds = predict(config, where, played, measured) if measured else {}
    return Forecast(config, missing, updates_of(config, played.skipped), sizes, measured, processes, seconds)


def predict(config: Config, where: Plan, played: RandomRollout, calibration: Calibration) -> dict[str, float]:
    """Seconds of a whole run by phase, as if phases never overlapped.

    Assumes that engines (ranks, if there are none) share the states evenly, and ranks the rows. Communication is free.
    """
    ranks = max(1, where.learners)
    scored_s, evaluated_s = (
        sample.seconds["scoring"] / sample.size / (where.engines or ranks)
        for sample in (calibration.scoring, calibration.evaluation)
    )
    steps = _intervals(config) * config.algo.update_interval
    found = {
        "environment": (config.random_steps + steps) * played.environment_s,
        "scoring": steps * scored_s,
        "replay": _intervals(config) * played.replay_s,
    }
    for phase, seconds in calibration.update.seconds.items():
        learning = _learning(config, played.skipped)
        times = learning * config.algo.rows_of_interval(phase) / ranks / calibration.update.size
        found[phase] = seconds * (updates_of(config, played.skipped) if phase == "optimizer" else times)
    if initial := config.replay.demonstration_updates:  # each takes as long as any other update
        update = calibration.update
        by_rows = sum(seconds for phase, seconds in update.seconds.items() if phase != "optimizer") / update.size
        found[INITIAL] = initial * (by_rows * config.algo.batch_size / ranks + update.seconds.get("optimizer", 0.0))
    scored = states_of_evaluations(config, played.episode_steps)
    random = config.evaluation.episodes * played.episode_steps
    found[EVALUATION] = scored * evaluated_s + (scored + random) * played.environment_s
    return found


def updates_of(config: Config, skipped: int) -> int:
    """Gradient updates of the whole run, if the first `skipped` intervals have too little experience."""
    return _learning(config, skipped) * config.algo.updates


def _learning(config: Config, skipped: int) -> int:
    """Intervals with updates."""
    at_random = math.ceil(config.random_steps / config.algo.update_interval)
    return max(0, _intervals(config) - max(0, skipped - at_random))


def states_of_evaluations(config: Config, episode_steps: float) -> float:
    """States scored outside the rollout: evaluations (before, after, interim) and samples.

    The states of a sample are scored three times: as they are played, and for probabilities and Q values.
    """
    evaluation, env = config.evaluation, build_env(config)
    episodes = evaluation.episodes * (1 + sum(bool(env.goals(split)) for _, split in EVALUATIONS_AFTER.values()))
    if evaluation.every_steps:
        episodes += config.steps // evaluation.every_steps * evaluation.every_episodes
    episodes += 3 * (config.steps // SAMPLES_STEPS) * SAMPLES
    return episodes * episode_steps


def _intervals(config: Config) -> int:
    """Intervals in which the policy plays; during the random steps before them, nothing is scored or learnt."""
    return math.ceil((config.steps - config.random_steps) / config.algo.update_interval)
