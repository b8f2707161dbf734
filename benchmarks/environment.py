"""Everything but the language model: environment steps per second, and its share of training time.

    python -m benchmarks.environment --config configs/quickstart.yaml
    python -m benchmarks.environment --set env.name=textworld --set env.workers=2 --intervals 0 --steps 3200

One row for the lockstep environments alone, under the uniformly random policy, and one for whole intervals of training
(collect, relabel and store, sample, make batches, update) after the buffer has been filled under that policy.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks import common
from sacglam import cpu
from sacglam.build import Parts, build, build_model
from sacglam.clock import PhaseClock
from sacglam.collector import build_env
from sacglam.config import Config, load
from sacglam.goals import GoalSource
from sacglam.policy import SamplingPolicy
from sacglam.prompt import Prompt
from sacglam.replay.experience import HindsightReplay
from sacglam.resolve import on_this_machine, with_copies
from sacglam.rollout import Rollout
from sacglam.scoring.base import UniformScorer

OUTSIDE_THE_MODEL = ("environment", "replay", "batch")


def random_rollout(config: Config) -> Rollout:
    """The environments in lockstep under the uniformly random policy."""
    envs = [build_env(config) for _ in range(config.env.copies)]
    starts = GoalSource(envs[0].goals("train"), np.random.default_rng(0))
    policy, windows = SamplingPolicy(np.random.default_rng(1)), config.algo.on_policy
    return Rollout(envs, UniformScorer(), policy, starts, PhaseClock(), windows=windows)


def environment_row(config: Config, steps: int, repeats: int) -> dict[str, Any]:
    """Steps per second of all copies together: world, texts, candidate actions, achieved goals, prompt, decision.

    Worlds that remember what they have computed, such as TextWorld, become faster from repeat to repeat.
    """
    rollout = random_rollout(config)
    interval = config.algo.update_interval
    _play(rollout, steps // 10, interval)
    rates = []
    for repeat in range(repeats):
        start = time.perf_counter()
        _play(rollout, steps, interval)
        rates.append(steps / (time.perf_counter() - start))
        common.log(f"  environment {repeat + 1}: {rates[-1]:.0f} steps/s")
    each = [round(rate) for rate in rates]
    return {"name": "environment", "steps_per_s": round(median(rates)), "repeats": each, **_what(config)}


def _play(rollout: Rollout, steps: int, interval: int) -> None:
    """At least `steps` steps, collected in intervals as in a run."""
    for _ in range(-(-steps // interval)):
        rollout.collect(interval)


def training_row(config: Config, fill: int, intervals: int) -> dict[str, Any]:
    """Where the time of `intervals` intervals goes, after a warm-up of a tenth as many."""
    parts = build(config)
    replay = parts.collector.experience
    assert isinstance(replay, HindsightReplay)
    replay.add(random_rollout(config).collect(fill))
    for _ in range(-(-intervals // 10)):
        _interval(parts, config)
    before = parts.clock.seconds
    start = time.perf_counter()
    for _ in range(intervals):
        _interval(parts, config)
    total = time.perf_counter() - start
    spent = {name: seconds - before.get(name, 0.0) for name, seconds in parts.clock.seconds.items()}
    spent["other"] = total - sum(spent.values())
    outside = sum(spent[name] for name in OUTSIDE_THE_MODEL) + spent["other"]
    prompt_tokens, actions, action_tokens = _lengths(replay, config)
    return {
        "name": "training",
        "actions": actions,
        "prompt_tokens": prompt_tokens,
        "action_tokens": action_tokens,
        "steps_per_s": round(intervals * config.algo.update_interval / total, 1),
        "seconds": {name: round(seconds, 3) for name, seconds in spent.items()},
        "share_outside_the_model": round(outside / total, 4),
        "buffer": len(replay.buffer),
        "batch_size": config.algo.batch_size,
        "updates_per_interval": config.algo.updates,
        "model": config.model.name,
        **_what(config),
    }


def _interval(parts: Parts, config: Config) -> None:
    """The body of the training loop; sampling is counted with the replay."""
    collected = parts.collector.rollout.collect(config.algo.update_interval)
    with parts.clock.phase("replay"):
        parts.collector.experience.add(collected)
        batches = parts.collector.experience.batches()
    parts.learners.learn(batches, config.algo.updates, None)
    parts.learners.finish()


def _lengths(replay: HindsightReplay, config: Config) -> tuple[float, float, float]:
    """Mean tokens of a prompt, mean number of actions, and mean tokens of one, over states from the buffer."""
    sample = replay.buffer.hindsight.entries(replay.buffer, np.random.default_rng(0), 1000)
    prompt, history = Prompt(config.prompt), config.prompt.history
    queries = [
        prompt(entry.goal, entry.episode.observation(entry.start), entry.episode.past(entry.start, history))
        for entry in sample
    ]
    tokenised = build_model(config).tokenizer(queries)
    return (
        round(fmean(len(q.prompt) for q in tokenised), 1),
        round(fmean(len(q.actions) for q in tokenised), 1),
        round(fmean(len(action) for q in tokenised for action in q.actions), 1),
    )


def _what(config: Config) -> dict[str, Any]:
    env = config.env
    settings = {"env": env.name, "env_options": env.options, "copies": env.copies, "workers": env.workers}
    return {**settings, **common.machine(config.device, config.threads)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="a configuration; none: the quickstart")
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="e.g. env.name=playground")
    parser.add_argument("--steps", type=int, default=9600, help="environment steps of a repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--fill", type=int, default=6400, help="environment steps in the buffer before the intervals")
    parser.add_argument("--intervals", type=int, default=20, help="intervals of training; 0: the environments alone")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    fixed = [f"threads={options.threads}", f"device={options.device}"]
    config = with_copies(on_this_machine(load(options.config, [*fixed, *options.overrides])))
    cpu.prepare(config.threads)
    rows = [environment_row(config, options.steps, options.repeats)]
    if options.intervals:
        rows.append(training_row(config, options.fill, options.intervals))
    common.emit(rows)


if __name__ == "__main__":
    main()
