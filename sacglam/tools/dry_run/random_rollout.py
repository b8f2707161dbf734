"""Some episodes of the random policy: states and rows to calibrate with, and what the environment's part costs."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sacglam.build import Collector, collector
from sacglam.clock import PhaseClock
from sacglam.config import Config
from sacglam.prompt import query
from sacglam.scoring.base import UniformScorer
from sacglam.types import Episode, Query


@dataclass(frozen=True)
class RandomRollout:
    """What was played and what it took."""

    states: Sequence[Query]
    batch: Sequence[Any]
    """What one update (SAC) or one interval (PPO) learns from."""
    environment_s: float
    """Seconds of one environment step, resets included."""
    replay_s: float
    """Seconds to store an interval and draw its batches."""
    episode_steps: float
    """Mean length of an episode."""
    replay_bytes: int
    """What the algorithm keeps of its rollouts, once it is full."""


def play(config: Config) -> RandomRollout:
    """Play until every copy may have ended an episode, twice: for time, and for memory, whose counting takes time."""
    clock = PhaseClock()
    found = _collector(config, clock)
    rollout, experience = found.rollout, found.experience
    states: list[Query] = []
    episodes: list[Episode] = []
    steps = intervals = 0
    replay_s = 0.0
    batches: Sequence[Any] = []
    while not batches or len(episodes) < config.env.copies:
        collected = rollout.collect(config.algo.update_interval)
        episodes += collected.episodes
        states += [query(f.goal, f.observation(t)) for f in collected.segments for t in range(len(f.steps))]
        steps, intervals = steps + config.algo.update_interval, intervals + 1
        start = time.perf_counter()
        experience.add(collected)
        batches = experience.batches()
        replay_s += time.perf_counter() - start
    return RandomRollout(
        states=states,
        batch=batches[0],
        environment_s=clock.seconds["environment"] / steps,
        replay_s=replay_s / intervals,
        episode_steps=sum(len(episode.steps) for episode in episodes) / len(episodes),
        replay_bytes=_replay_bytes(config, intervals),
    )


def _collector(config: Config, clock: PhaseClock) -> Collector:
    """That of the run, but with the random policy; and updates need not wait for `replay.min_size`."""
    replay = config.replay.model_copy(update={"min_size": 1})
    return collector(config.model_copy(update={"replay": replay}), UniformScorer(), clock)


def _replay_bytes(config: Config, intervals: int) -> int:
    """Bytes that Python holds for what `intervals` leave in the experience, and so for a full one."""
    found = _collector(config, PhaseClock())
    rollout, experience = found.rollout, found.experience
    rollout.collect(config.env.copies)  # opens episodes, and fills caches
    tracemalloc.start()
    try:
        for _ in range(intervals):
            experience.add(rollout.collect(config.algo.update_interval))
        del rollout, found
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    size = experience.metrics(0).get("buffer_size")
    return round(held * config.replay.capacity / size) if size else held


def rows_of_an_update(config: Config) -> int:
    """Rows of a gradient step; PPO's has no more than the interval's steps."""
    algo = config.algo
    return min(algo.batch_size, algo.update_interval) if algo.type == "ppo" else algo.batch_size


def first_rows(batch: Sequence[Any], rows: int) -> Sequence[Any]:
    """The first `rows` transitions (SAC), or so many steps of the segments (PPO)."""
    if not isinstance(batch[0], Episode):
        return batch[:rows]
    found: list[Episode] = []
    for segment in batch:
        if rows > 0:
            found.append(replace(segment, decisions=segment.decisions[:rows], steps=segment.steps[:rows]))
            rows -= len(segment.steps)
    return found
