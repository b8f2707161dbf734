"""The loop on one page: collect, learn, hand over, one interval after another; and its whole state."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict

import torch

from sacglam import cpu
from sacglam.build import Parts, build_env
from sacglam.config import Config
from sacglam.envs.workers import process_ids
from sacglam.errors import CheckpointError
from sacglam.runs.checkpoint import Checkpoint
from sacglam.runs.display import Display
from sacglam.runs.progress import MetricsWindow, Progress
from sacglam.runtime.learners import PendingUpdate

_FORMAT = 2


class Loop:
    """Trains the parts of `config`, as far as its caller iterates."""

    def __init__(self, config: Config, parts: Parts) -> None:
        self.progress = Progress()
        self.window = MetricsWindow()
        self._config = config
        self._parts = parts
        self._goal_type = build_env(config).goal_type
        self._pending_updates: deque[PendingUpdate] = deque()

    def intervals(self) -> Iterator[None]:
        """Train until the budget is spent; yields after each interval of `algo.update_interval` environment steps."""
        parts, progress, interval = self._parts, self.progress, self._config.algo.update_interval
        rollout, experience = parts.collector.rollout, parts.collector.experience
        while progress.env_steps < self._config.steps:
            with self.training_time():
                self.window.add({"staleness": float(parts.learners.begun - parts.scorer.version)})
                rollout.at_random = progress.env_steps < self._config.random_steps
                batch = rollout.collect(interval)  # environment -> scorer -> policy -> environment
                with parts.clock.phase("replay"):
                    experience.add(batch)  # SAC: the episodes that ended; PPO: the interval's steps
                    batches = () if rollout.at_random else experience.batches()
                if batches:
                    probe, updates = parts.handoff.probe(parts.learners.begun), self._config.algo.updates
                    with parts.clock.phase("submit") if self._config.learners.count else nullcontext():
                        pending = parts.learners.learn(batches, updates, parts.handoff.publishes, probe)
                    self._pending_updates.append(pending)
                self.finish_updates(all_but=self._config.runtime.lag)  # the adapter is the only arrow back
                self.window.add_episodes(batch.episodes, self._goal_type)
                progress.env_steps += interval
                progress.episodes += len(batch.episodes)
            yield

    def finish_updates(self, all_but: int = 0) -> None:
        """Wait for pending updates, the oldest first, and hand their adapters to the engines."""
        while len(self._pending_updates) > all_but:
            with self._parts.clock.phase("waiting"):
                learned = self._pending_updates.popleft().finish()
            for metrics in learned.metrics:
                self.window.add(metrics)
            self.window.add(self._parts.handoff.deliver(learned.published))
            self.progress.updates = self._parts.learners.updates

    def start_up(self, display: Display, check: Callable[[], None]) -> None:
        """Wait for the other processes, if there are any; `publish` then brings the first adapter to the engines.

        `check` is polled; it may raise to abort.
        """
        parts, timeout_s = self._parts, self._config.engines.start_timeout_s
        if parts.processes is None:
            return
        display.stage("starting processes", 2)
        parts.learners.wait_ready(timeout_s, check)
        display.advance(1)
        if parts.processes.engines:
            parts.processes.engines.wait_ready(check)
        display.advance(2)

    def publish(self) -> None:
        """Bring the present adapter to the engines, if there are any."""
        parts = self._parts
        if parts.processes and parts.processes.engines:
            with self.training_time():
                self.window.add(parts.handoff.deliver(parts.learners.publish(parts.handoff.probe(0))))

    @contextmanager
    def training_time(self) -> Iterator[None]:
        """Count the seconds of the `with` block, which an interval is, and what it does at other times too."""
        started, cpu_started = time.perf_counter(), self._cpu_seconds()
        yield
        self.progress.seconds += time.perf_counter() - started
        if self.progress.cpu_seconds is not None:
            self.progress.cpu_seconds += self._cpu_seconds() - cpu_started

    def _cpu_seconds(self) -> float:
        """CPU seconds so far of this process, its environments' workers, and calls to others that have returned."""
        processes = self._parts.processes
        return cpu.seconds(process_ids()) + (processes.runtime.cpu_seconds if processes else 0.0)

    def checkpoint(self) -> Checkpoint:
        """Weights, targets, optimizer, alpha, replay, open episodes, all random state, and progress.

        A checkpoint is of one moment, so no update may be pending.
        """
        parts, collector = self._parts, self._parts.collector
        tensors, learner = parts.learners.state()
        columns, replay = collector.experience.state()
        return Checkpoint(
            tensors={**tensors, "torch_rng": torch.get_rng_state()},
            arrays=columns,
            values={
                "format": _FORMAT,
                "learner": learner,
                "replay": replay,
                "rollout": collector.rollout.state(),
                **{name: rng.bit_generator.state for name, rng in collector.rngs.items()},
                "window": asdict(self.window),
                "progress": asdict(self.progress),
                "clock": parts.clock.seconds,
            },
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Resume from `checkpoint`, which may have been taken on other processes.

        Raises:
            CheckpointError: it was written by another version of sacglam, or for another model.
            Exception: it is damaged; `sacglam.runs.checkpoint.restore_newest` says so.
        """
        values, parts, collector = checkpoint.values, self._parts, self._parts.collector
        if values["format"] != _FORMAT:
            raise CheckpointError(
                f"expected checkpoint format {_FORMAT}, got {values['format']}; use the sacglam that wrote it"
            )
        self.progress = Progress(**{"cpu_seconds": None, **values["progress"]})
        if values["learner"]["updates"] != self.progress.updates:
            raise ValueError("the learner has made another number of updates than the run")
        tensors = dict(checkpoint.tensors)
        torch.set_rng_state(tensors.pop("torch_rng"))
        parts.learners.load_state(tensors, values["learner"])
        collector.experience.load_state(checkpoint.arrays, values["replay"])
        for name, rng in collector.rngs.items():  # before further environments draw their first goals
            rng.bit_generator.state = values[name]
        collector.rollout.restore(values["rollout"])
        parts.clock.restore(values["clock"])
        self.window = MetricsWindow(**values["window"])
