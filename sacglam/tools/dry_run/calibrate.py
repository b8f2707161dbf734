"""A one-minute trial: plays at random, then scores states and takes updates with the run's own model."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from typing_extensions import override

from sacglam.build import build_learner
from sacglam.clock import PhaseClock
from sacglam.collector import collector
from sacglam.config import Config
from sacglam.memory import free_bytes, peak_bytes
from sacglam.models.agent_model import AgentModel
from sacglam.runs.display import Display
from sacglam.scoring.base import UniformScorer
from sacglam.tools.profile.phases import Recorder
from sacglam.types import Episode, LogPolicy, Query, Window

_SCORING_S, _UPDATE_S = 15.0, 40.0  # time limits, exceeded only if the smallest piece of work takes longer
_STEADY_S = 4.0
_SHARE_OF_FREE = 0.7
_EVALUATED = 32  # states at once: an evaluation has up to 64, but beyond this number the time per state hardly falls


class RecordingScorer(UniformScorer):
    """The random policy, which keeps the states that it is asked about."""

    def __init__(self) -> None:
        self.states: list[Query] = []

    @override
    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        self.states += queries
        return super().log_policy(queries)


@dataclass(frozen=True)
class RandomRollout:
    """Episodes of the random policy, and their cost."""

    states: Sequence[Query]
    batch: Sequence[Window]  # what one update (SAC) or one interval (PPO) learns from
    environment_s: float  # of one environment step, resets included
    replay_s: float  # to store an interval and draw its batches
    episode_steps: float  # mean
    skipped: int = 0  # intervals before there is enough experience to learn from


def play(config: Config) -> RandomRollout:
    """Play until as many episodes as copies have ended, then play again to measure memory."""
    clock, scorer = PhaseClock(), RecordingScorer()
    parts = collector(config, scorer, clock)
    episodes: list[Episode] = []
    batches: Sequence[Sequence[Window]] = ()
    intervals = learning = 0
    while not batches or len(episodes) < config.env.copies:
        collected = parts.rollout.collect(config.algo.update_interval)
        with clock.phase("storing"):
            parts.experience.add(collected)
        with clock.phase("drawing"):
            batches = parts.experience.batches()
        episodes += collected.episodes
        intervals += 1
        learning += bool(batches)
    return RandomRollout(
        states=scorer.states,
        batch=batches[0],
        environment_s=clock.seconds["environment"] / (intervals * config.algo.update_interval),
        replay_s=clock.seconds["storing"] / intervals + clock.seconds["drawing"] / learning,
        episode_steps=sum(len(episode.steps) for episode in episodes) / len(episodes),
        skipped=intervals - learning,
    )


def first_steps(config: Config, windows: Sequence[Window], steps: int) -> Sequence[Window]:
    """The windows with the first `steps` learnt steps; the last window is cut to fit."""
    found: list[Window] = []
    for w in windows:
        learnt = config.algo.learnt_steps(w)
        if learnt >= steps:
            observations, actions, rewards = w.observations[: steps + 1], w.actions[:steps], w.rewards[:steps]
            cut = replace(w, observations=observations, actions=actions, rewards=rewards, terminated=False)
            return [*found, w if learnt == steps else cut]
        found.append(w)
        steps -= learnt
    return found


@dataclass(frozen=True)
class Sample:
    """The largest piece of work measured: size in states or rows, seconds by phase, peak memory in bytes."""

    size: int
    seconds: Mapping[str, float]
    peak: int | None


@dataclass(frozen=True)
class Calibration:
    """The measured cost of scoring and of an update on this machine."""

    scoring: Sample  # of as many states as there are copies
    evaluation: Sample  # of many at once, however few copies there are
    update: Sample


def calibrate(config: Config, model: AgentModel, played: RandomRollout, display: Display) -> Calibration:
    """Score as many states as there are copies, and make one update, or as much of both as the time allows.

    `config` is for a single process. Changes the weights of `model`. Hidden states are not cached
    (`Config.keeps_states`), since the same states recur here.
    """
    model.lm.frozen = None
    clock = PhaseClock()
    clock.watch(Recorder(config.device))
    # The actor learns from the first update, as later in a run, and each row is learnt once.
    once = config.model_copy(update={"algo": config.algo.with_values(warmup_updates=0, epochs=1)})
    learner = build_learner(once, model, clock)

    def score(states: int) -> None:
        with clock.phase("scoring"):
            model.log_policy(played.states[:states])

    def update(rows: int) -> None:
        learner.learn([first_steps(config, played.batch, rows)])

    states, rows = config.env.copies, config.algo.rows
    display.stage("calibrating: scoring", states)
    evaluation = scoring = grow(score, states, _SCORING_S, clock, config.device, display)
    if scoring.size == states < (evaluated := min(_EVALUATED, len(played.states))):
        display.stage("calibrating: an evaluation's scoring", evaluated)
        evaluation = grow(score, evaluated, _SCORING_S, clock, config.device, display)
    display.stage("calibrating: an update", rows)
    return Calibration(scoring, evaluation, grow(update, rows, _UPDATE_S, clock, config.device, display))


def grow(
    run: Callable[[int], None], most: int, limit_s: float, clock: PhaseClock, device: str, display: Display
) -> Sample:
    """Run sizes 1, 2, 4, ... up to `most`, as long as the next should fit in time and memory; return the last one run.

    The smaller sizes serve as a warm-up. `most`, if reached, is repeated for a few seconds and averaged.
    """
    start, size, times = time.perf_counter(), 1, 1
    while True:
        before, began = clock.seconds, time.perf_counter()
        peak = peak_bytes(partial(run, size), device)
        now = time.perf_counter()
        display.advance(size)
        growth = min(most, 2 * size) / size
        free = free_bytes(device)
        too_large = peak is not None and growth * peak > _SHARE_OF_FREE * free
        fits = now - start + (now - began) * growth <= limit_s and not too_large
        if size == most or not fits:
            break
        size = min(most, 2 * size)
    if fits:
        before, began, times = clock.seconds, time.perf_counter(), 0
        while not times or time.perf_counter() - began < _STEADY_S:
            run(most)
            times += 1
    spent = {name: after - before.get(name, 0.0) for name, after in clock.seconds.items()}
    return Sample(size, {name: seconds / times for name, seconds in spent.items() if seconds > 0}, peak)
