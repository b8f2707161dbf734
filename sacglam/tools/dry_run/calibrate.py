"""A minute of the real thing: states scored and updates taken with the training's own model and learner."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from sacglam.build import build_learner
from sacglam.clock import PhaseClock
from sacglam.config import Config
from sacglam.models.agent_model import AgentModel
from sacglam.runs.display import Display
from sacglam.scoring.packed import PackedScorer
from sacglam.tools.dry_run.random_rollout import RandomRollout, first_rows, rows_of_an_update
from sacglam.tools.profile.memory import free_bytes, peak_bytes
from sacglam.tools.profile.recorder import Recorder, synchroniser

SCORING_S, UPDATE_S = 15.0, 40.0
"""Seconds for each, as far as the smallest piece of work allows."""
_SHARE_OF_FREE = 0.7
_STEADY_S = 4.0


@dataclass(frozen=True)
class Sample:
    """The largest piece of work that was done: its size in states or rows, its seconds by phase, its peak in bytes."""

    size: int
    seconds: Mapping[str, float]
    peak: int | None


@dataclass(frozen=True)
class Calibration:
    """What scoring and an update took on this machine."""

    scoring: Sample
    update: Sample


def calibrate(config: Config, model: AgentModel, played: RandomRollout, display: Display) -> Calibration:
    """Score as many states as play at once, and take an update, or as much of both as the time allows.

    `config` is of one process. Changes the weights of `model`.
    """
    clock = PhaseClock()
    clock.watch(Recorder(synchroniser(config.device)))
    scorer = PackedScorer(model.lm, model.tokenizer, model.policy)

    def score(states: int) -> None:
        with clock.phase("scoring"):
            scorer.log_policy(played.states[:states])

    display.stage("calibrating: scoring", config.env.copies)
    scoring = _grow(score, config.env.copies, SCORING_S, clock, config.device, display)
    learner = build_learner(_one_update(config), model, clock)

    def update(rows: int) -> None:
        learner.update([first_rows(played.batch, rows)])

    most = rows_of_an_update(config)
    display.stage("calibrating: an update", most)
    return Calibration(scoring, _grow(update, most, UPDATE_S, clock, config.device, display))


def _one_update(config: Config) -> Config:
    """The actor learns at once, as later in a run; PPO goes through its rows a single time."""
    changed = {"warmup_updates": 0} if config.algo.type == "sac" else {"epochs": 1}
    return config.model_copy(update={"algo": config.algo.model_copy(update=changed)})


def _grow(
    run: Callable[[int], None], most: int, limit_s: float, clock: PhaseClock, device: str, display: Display
) -> Sample:
    """Run sizes 1, 2, 4, ... up to `most`, while the next fits in time and memory; the last one run.

    What comes before it warms up. `most` is run again for some seconds, for a mean.
    """
    start, size = time.perf_counter(), 1
    while True:
        before, began = clock.seconds, time.perf_counter()
        peak = peak_bytes(partial(run, size), device)
        now = time.perf_counter()
        display.advance(size)
        following = min(most, 2 * size)
        late = now - start + (now - began) * following / size > limit_s
        if late or _crowded(peak, following / size, device):
            return Sample(size, _since(before, clock, 1), peak)
        if size == most:
            break
        size = following
    before, began, times = clock.seconds, time.perf_counter(), 0
    while not times or time.perf_counter() - began < _STEADY_S:
        run(most)
        times += 1
    return Sample(most, _since(before, clock, times), peak)


def _since(before: Mapping[str, float], clock: PhaseClock, times: int) -> dict[str, float]:
    """Seconds by phase of one of so many runs."""
    spent = {name: after - before.get(name, 0.0) for name, after in clock.seconds.items()}
    return {name: seconds / times for name, seconds in spent.items() if seconds > 0}


def _crowded(peak: int | None, growth: float, device: str) -> bool:
    """Whether `growth` times the last peak would come near to all that is free."""
    free = free_bytes(device)
    return peak is not None and free is not None and growth * peak > _SHARE_OF_FREE * free
