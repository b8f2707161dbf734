"""The training loop on one page (collect, learn, hand over, interval by interval), and what a checkpoint holds."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace

import numpy as np
import torch

from sacglam import cpu
from sacglam.build import Parts
from sacglam.config import Config
from sacglam.envs.workers import process_ids
from sacglam.errors import DemonstrationError, RunDirectoryError
from sacglam.runs.checkpoint import Checkpoint
from sacglam.runs.display import Display
from sacglam.runs.progress import MetricsAccumulator, Progress
from sacglam.types import Window

_FORMAT = 3
IMITATED = 20
"""Initial updates between lines of metrics."""
_IMITATION = 0x1417A  # seeds their batches


class Loop:
    """Runs one training interval per iteration."""

    def __init__(self, config: Config, parts: Parts) -> None:
        self.progress = Progress()
        self.window = MetricsAccumulator()
        self._config = config
        self._parts = parts

    def intervals(self) -> Iterator[None]:
        """Train until the step budget is used up; yields after each `algo.update_interval` environment steps."""
        parts, progress, interval = self._parts, self.progress, self._config.algo.update_interval
        rollout, experience, goals = parts.collector.rollout, parts.collector.experience, parts.collector.goals
        env = rollout.envs[0]
        while progress.env_steps < self._config.steps:
            with self.training_time():
                self.window.add({"staleness": float(parts.learners.begun - parts.scorer.version)})
                rollout.at_random = progress.env_steps < self._config.random_steps
                batch = rollout.collect(interval)  # environment -> scorer -> policy -> environment
                described = tuple(parts.partner.describe(batch.episodes))
                with parts.clock.phase("replay"):
                    experience.add(replace(batch, episodes=described))  # PPO uses `batch.windows` instead
                    batches = () if rollout.at_random else experience.batches()
                if batches:
                    probe = parts.handoff.probe(parts.learners.begun) if parts.handoff else None
                    with parts.clock.phase("submit") if self._config.learners.count else nullcontext():
                        parts.learners.learn(batches, self._config.algo.updates, probe)
                progress.env_steps += interval
                progress.episodes += len(batch.episodes)
                last = progress.env_steps >= self._config.steps
                self.finish_updates(all_but=0 if last else self._config.runtime.lag)  # only the adapter flows back
                with parts.clock.phase("goals"):
                    goals.observe(described)
                pursued = [episode for episode in batch.episodes if episode.goal in goals.given]  # not imagined
                self.window.add_episodes(pursued, env.goal_type, self._config.env.reward == "environment")
            yield

    def imitate(self) -> Iterator[None]:
        """Make the initial updates on demonstrations; yields after every `IMITATED` of them, and at the end.

        They alternate between policy and critic. An on-policy algorithm trains only the policy, since its critic cannot
        learn from other policies' episodes; one that learns offline makes only its own updates. A batch depends only on
        the seed and its index, so it need not be part of a checkpoint.
        """
        config, updates, progress = self._config, self._config.replay.demonstration_updates, self.progress
        found = self._parts.collector.demonstrations
        sampler, size = self._parts.collector.sampler, config.algo.batch_size
        draw = config.replay.hindsight.batch
        while found and progress.updates < updates and not progress.env_steps:
            with self.training_time():
                batches = list[tuple[bool, Sequence[Window]]]()
                for number in range(progress.updates, min(progress.updates + IMITATED, updates)):
                    rng = np.random.default_rng([config.seed, _IMITATION, number])
                    cloned = not config.algo.learns_offline and (number % 2 == 0 or config.algo.on_policy)
                    drawn = found.steps_of(rng, sampler) if cloned else draw(found.ring, rng, sampler, size)
                    batches.append((cloned, drawn))
                self._parts.learners.imitate(batches)
                self.finish_updates()
            if progress.updates == updates:
                self.publish()
            yield

    def finish_updates(self, all_but: int = 0) -> None:
        """Wait for pending updates, the oldest first, and hand their adapters to the engines."""
        parts = self._parts
        while parts.learners.pending > all_but:
            with parts.clock.phase("waiting"):
                learned = parts.learners.finish()
            for metrics in learned.metrics:
                self.window.add(metrics)
            if parts.handoff and learned.adapter:
                self.window.add(parts.handoff.deliver(learned.adapter))
            self.progress.updates = parts.learners.version

    def start_up(self, display: Display, check: Callable[[], None]) -> None:
        """Wait for the other processes, if there are any; `publish` then sends the engines their first adapter.

        `check` is polled; it may raise to abort.
        """
        parts = self._parts
        if parts.runtime is None:
            return
        display.stage("starting processes", 2)
        parts.learners.wait_ready(check)
        display.advance(1)
        if parts.handoff:
            parts.handoff.engines.wait_ready(check)
        display.advance(2)

    def publish(self) -> None:
        """Send the current adapter to the engines, if there are any."""
        parts = self._parts
        if parts.handoff:
            with self.training_time():
                self.window.add(parts.handoff.deliver(parts.learners.publish(parts.handoff.queries)))

    @contextmanager
    def training_time(self) -> Iterator[None]:
        """Add the seconds of the `with` block to the training time."""
        started, cpu_started = time.perf_counter(), self._cpu_seconds()
        yield
        self.progress.seconds += time.perf_counter() - started
        self.progress.cpu_seconds += self._cpu_seconds() - cpu_started

    def _cpu_seconds(self) -> float:
        """CPU seconds so far of this process, its environment workers, and finished calls to other processes."""
        runtime = self._parts.runtime
        return cpu.seconds(process_ids()) + (runtime.cpu_seconds if runtime else 0.0)

    def checkpoint(self) -> Checkpoint:
        """Weights, targets, optimizer, alpha, replay, open episodes, all random state, and progress.

        No update may be pending.
        """
        parts, collector = self._parts, self._parts.collector
        tensors, learner = parts.learners.state()
        return Checkpoint(
            tensors={**tensors, "torch_rng": torch.get_rng_state()},
            values={
                "format": _FORMAT,
                "learner": learner,
                "replay": collector.experience.state(),
                "rollout": collector.rollout.state(),
                "goals": collector.goals.state(),
                **{name: rng.bit_generator.state for name, rng in collector.rngs.items()},
                "window": asdict(self.window),
                "progress": asdict(self.progress),
                "clock": parts.clock.seconds,
                "partner": parts.partner.state(),
                "demonstrations": collector.demonstrations and collector.demonstrations.checksum,
            },
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Resume from `checkpoint`, which may have been written by a different set of processes.

        Raises:
            RunDirectoryError: it was written by another version of sacglam, as the others of its run were.
            CheckpointError: it is of another model.
            Exception: it is damaged; `sacglam.runs.checkpoint.restore_newest` says so.
        """
        values, parts, collector = checkpoint.values, self._parts, self._parts.collector
        if values["format"] != _FORMAT:
            raise RunDirectoryError(
                f"expected checkpoint format {_FORMAT}, got {values['format']}; use the sacglam that wrote it"
            )
        self.progress = Progress(**values["progress"])
        found, config = collector.demonstrations, self._config.replay
        if found and values["demonstrations"] != found.checksum:
            raise DemonstrationError(f"{config.demonstrations} has changed since the run began; restore the original")
        torch.set_rng_state(checkpoint.tensors["torch_rng"])
        parts.learners.load_state(checkpoint.tensors, values["learner"])
        collector.experience.load_state(values["replay"])
        for name, rng in collector.rngs.items():  # before new environments draw their first goals
            rng.bit_generator.state = values[name]
        collector.goals.load_state(values["goals"])
        parts.partner.load_state(values["partner"])
        collector.rollout.restore(values["rollout"])
        parts.clock.restore(values["clock"])
        self.window = MetricsAccumulator(**values["window"])
