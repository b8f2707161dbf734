"""Training: the loop on one page, and what happens before and after it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from sacglam import config as configuration
from sacglam.assembly import Parts, build
from sacglam.build import build_env, resolve
from sacglam.config import Config
from sacglam.envs.base import Split
from sacglam.evaluate import Evaluation, evaluate
from sacglam.export import write_agent
from sacglam.policy import Policy, SamplingPolicy, greedy
from sacglam.runs import checkpoint
from sacglam.runs.curves import draw_curves
from sacglam.runs.directory import LineLog, RunDirectory
from sacglam.runs.display import Display, Silent
from sacglam.runs.progress import MetricsWindow, Progress
from sacglam.runs.sidecar import record_hash, sidecar_for
from sacglam.runs.stopping import Stopped, StopSignal
from sacglam.runs.summary import summary_of_end, summary_of_start
from sacglam.runtime.learners import PendingUpdate
from sacglam.samples import sample_episodes
from sacglam.scoring.base import Scorer, UniformScorer
from sacglam.snapshot import restore, snapshot

# Streams of evaluation episodes: before and after a training play the same ones, and training none of them.
_FINAL, _HELDOUT, _INTERIM, _SAMPLES = 0xF17A1, 0x4E1D0, 0x17E21, 0x5A3B1


def train(config: Config, out: Path, display: Display | None = None) -> dict[str, Any]:
    """Run one training from the start in the new folder `out`; its summary, as in `summary.json`.

    Sets the process's thread count. While it runs, SIGINT and SIGTERM end it cleanly with a checkpoint.

    Raises:
        SacglamError: the folder holds a run, the model or the environment cannot be used, the loss diverged, ...
    """
    resolved = resolve(config)
    directory, shown = RunDirectory.vacant(out), display or Silent()
    return Training(directory, resolved, shown, build(resolved, shown.note)).run(new=True)


def resume(root: Path, display: Display | None = None, placement: Sequence[str] = ()) -> dict[str, Any]:
    """Go on with the run in `root` from its newest whole checkpoint, or from the start if it has none yet.

    On CPU with the same number of threads the weights and metrics become those of the uninterrupted run, bit for bit.
    `placement` puts it elsewhere: settings such as `learners.count=1`, which change where things run and not what.

    Raises:
        SacglamError: no run there, no whole checkpoint among those it has, a device that this machine lacks, ...
    """
    directory = RunDirectory.open(root)
    config = configuration.override(directory.config(), placement)
    # With another placement threads are settled anew: they were for the processes there were.
    config = resolve(config.model_copy(update={"threads": 0}) if placement else config)
    shown = display or Silent()
    return Training(directory, config, shown, build(config, shown.note)).run()


class Training:
    """One run: its folder, its parts and how far it is."""

    def __init__(self, directory: RunDirectory, config: Config, display: Display, parts: Parts) -> None:
        """`parts` are those of `config`; no step is taken yet, and nothing written."""
        self._directory = directory
        self._config = config
        self._display = display
        self._parts = parts
        self._progress = Progress()
        self._window = MetricsWindow()
        self._log = LineLog(directory.metrics_file)
        self._samples = LineLog(directory.samples_file)
        self._sidecar = sidecar_for(directory, config.tracking, display)
        self._goal_type = build_env(config).goal_type
        self._saved_at: int | None = None
        self._pending_updates: deque[PendingUpdate] = deque()

    def run(self, new: bool = False) -> dict[str, Any]:
        """Evaluate, train, evaluate, and leave the results in the run's folder, which a `new` run claims first."""
        with StopSignal() as stop, closing(self._parts), closing(self._sidecar):
            if new:
                self._directory.claim(self._config)
            else:
                self.restore()
            self._sidecar.start()
            try:
                self.start_up(stop)
                start = self._evaluate_start(stop)
                self.loop(stop)
                self._checkpoint()
                after = self._evaluate_end(stop)
            except Stopped:
                self._checkpoint()
                return self._summarise(self._directory.summary() or {}, {})
            return self._summarise(start, after)

    def loop(self, stop: StopSignal) -> None:
        """Collect, learn, log, until the budget is spent or `stop` is set."""
        parts, progress, interval = self._parts, self._progress, self._config.algo.update_interval
        self._display.stage("training", self._config.steps)
        while progress.env_steps < self._config.steps and not stop.requested:
            started = time.perf_counter()
            self._window.add({"staleness": float(parts.learners.begun - parts.scorer.version)})
            collected = parts.rollout.collect(interval)  # environment -> scorer -> policy -> environment
            with parts.clock.phase("replay"):
                parts.experience.add(collected)  # SAC: real and hindsight transitions; PPO: the interval's steps
                batches = parts.experience.batches()
            if batches:
                probe, updates = parts.handoff.probe(parts.learners.begun), self._config.algo.updates_per_interval
                self._pending_updates.append(parts.learners.learn(batches, updates, parts.handoff.publishes, probe))
            self._finish(all_but=self._config.runtime.lag)  # the adapter is the only arrow back
            self._window.add_episodes(collected.episodes, self._goal_type)
            progress.env_steps += interval
            progress.episodes += len(collected.episodes)
            progress.seconds += time.perf_counter() - started
            self._at_due_times()

    def _finish(self, all_but: int = 0) -> None:
        """Take in the results of updates under way, the oldest first, and hand their adapter to the engines."""
        while len(self._pending_updates) > all_but:
            with self._parts.clock.phase("waiting"):
                learned = self._pending_updates.popleft().finish()
            for metrics in learned.metrics:
                self._window.add(metrics)
            self._window.add(self._parts.handoff.deliver(learned.published))
            self._progress.updates = self._parts.learners.updates

    def start_up(self, stop: StopSignal) -> None:
        """Wait for the other processes, if there are any, and bring the first adapter to the engines.

        Raises:
            Stopped: `stop` was set meanwhile.
        """
        parts = self._parts
        if parts.processes is None:
            return
        self._display.stage("starting engines and learners", 3)
        parts.learners.wait_ready(self._config.engines.start_timeout_s, stop.check)
        self._display.advance(1)
        parts.processes.engines.wait_ready(stop.check)
        self._display.advance(2)
        self._window.add(parts.handoff.deliver(parts.learners.publish(parts.handoff.probe(0))))
        self._display.advance(3)

    def restore(self) -> None:
        """Take over the newest whole checkpoint, and drop what was logged after it."""
        if checkpoint.steps(self._directory.checkpoints):
            folder, found = checkpoint.load_newest(self._directory.checkpoints, self._display.note)
            self._progress = restore(self._parts, self._window, found)
            self._saved_at = self._progress.env_steps
            self._display.note(f"going on from {folder}")
        for log in (self._log, self._samples):
            log.rewind(self._progress.env_steps)

    def _at_due_times(self) -> None:
        if self._due(self._config.log_every_steps):
            metrics = {**self._window.flush(), **self._parts.experience.metrics(self._progress.updates)}
            self._append(metrics)
            self._display.metrics(self._progress, metrics)
        if self._due(self._config.evaluation.every_steps):
            self._append(self._interim_evaluation())
        if self._due(self._config.tracking.samples_every_steps):
            self._samples.append({**self._counters(), "episodes": self._sample()})
        if self._due(self._config.checkpoint.every_steps):
            self._checkpoint()
        self._display.advance(self._progress.env_steps)

    def _due(self, every: int) -> bool:
        """Whether the last interval reached or passed a multiple of `every` environment steps; 0 is never."""
        now, interval = self._progress.env_steps, self._config.algo.update_interval
        return every > 0 and now // every > (now - interval) // every

    def _append(self, metrics: Mapping[str, float]) -> None:
        self._log.append({**self._counters(), **metrics})
        self._sidecar.check()

    def _counters(self) -> dict[str, float]:
        progress = self._progress
        return {"env_steps": progress.env_steps, "updates": progress.updates, "seconds": round(progress.seconds, 3)}

    def _checkpoint(self) -> None:
        """Write a checkpoint of this moment, unless there is one, or the policy is broken and would break it, too."""
        if self._saved_at == self._progress.env_steps:
            return
        self._finish()  # a checkpoint is of one moment
        with self._parts.clock.phase("checkpoint"):
            self._parts.rollout.check_policy()
            checkpoint.save(
                self._directory.checkpoints,
                self._progress.env_steps,
                snapshot(self._parts, self._progress, self._window),
                self._config.checkpoint.keep,
            )
        self._saved_at = self._progress.env_steps

    def _evaluate_start(self, stop: StopSignal) -> dict[str, Any]:
        """The summary's first part: the random policy and the untrained one. A resumed run has it already."""
        start = self._directory.summary()
        if start is None:
            rng = np.random.default_rng(self._config.seed)
            random = self._evaluate("evaluating the random policy", UniformScorer(), SamplingPolicy(rng), stop)
            before = self._evaluate("evaluating before", self._parts.scorer, greedy, stop)
            start = summary_of_start(random, before)
            self._directory.write_summary(start)
        return start

    def _evaluate_end(self, stop: StopSignal) -> dict[Split, Evaluation]:
        """The trained policy on the goals of training and on those held out, if the budget is spent."""
        if self._progress.env_steps < self._config.steps:
            return {}
        after: dict[Split, Evaluation] = {"train": self._evaluate("evaluating after", self._parts.scorer, greedy, stop)}
        if build_env(self._config).goals("heldout"):
            after["heldout"] = self._evaluate("evaluating held-out goals", self._parts.scorer, greedy, stop, "heldout")
        return after

    def _summarise(self, start: Mapping[str, Any], after: Mapping[Split, Evaluation]) -> dict[str, Any]:
        """Write the summary and, of a finished run, the agent; the summary."""
        end = summary_of_end(self._config, self._parts, self._progress, after)
        summary = {**start, **end}
        if start:  # without it a resumed run evaluates its start first
            self._directory.write_summary(summary)
        if after:
            write_agent(self._parts.learners.exported(), self._directory.adapter)
        draw_curves(self._directory)
        self._sidecar.close()
        return record_hash(self._directory, summary)

    def _interim_evaluation(self) -> dict[str, float]:
        env, settings = build_env(self._config), self._config.evaluation
        metrics: dict[str, float] = {}
        splits: list[tuple[str, Split]] = [("eval_success", "train")]
        if settings.heldout and env.goals("heldout"):
            splits.append(("heldout_success", "heldout"))
        for prefix, split in splits:
            with self._parts.clock.phase("evaluation"):
                found = evaluate(
                    lambda: build_env(self._config),
                    self._parts.scorer,
                    greedy,
                    split=split,
                    episodes=settings.every_episodes,
                    rng=np.random.default_rng([self._config.seed, _INTERIM]),
                )
            metrics |= {f"{prefix}/{name}": value for name, value in found.success.items()}
        return metrics

    def _sample(self) -> list[dict[str, Any]]:
        with self._parts.clock.phase("samples"):
            return sample_episodes(
                lambda: build_env(self._config),
                self._parts.scorer,
                self._parts.learners.q_values,
                self._config.tracking.samples_episodes,
                np.random.default_rng([self._config.seed, _SAMPLES, self._progress.env_steps]),
            )

    def _evaluate(
        self, stage: str, scorer: Scorer, policy: Policy, stop: StopSignal, split: Split = "train"
    ) -> Evaluation:
        episodes = self._config.evaluation.episodes
        self._display.stage(stage, episodes)

        def progress(done: int) -> None:
            self._display.advance(done)
            stop.check()
            self._parts.learners.check()

        return evaluate(
            lambda: build_env(self._config),
            scorer,
            policy,
            split=split,
            episodes=episodes,
            rng=np.random.default_rng([self._config.seed, _FINAL if split == "train" else _HELDOUT]),
            progress=progress,
        )
