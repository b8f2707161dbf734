"""A run from start to end: evaluates, trains, evaluates again, and writes the results to its folder."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from sacglam.build import Parts, build
from sacglam.collector import build_env, first_states
from sacglam.config import Config, override
from sacglam.envs import check_env
from sacglam.errors import memory_explained
from sacglam.evaluate import SAMPLES, SAMPLES_STEPS, Evaluations
from sacglam.loop import Loop
from sacglam.policy import mean_entropy, uniform_entropy
from sacglam.resolve import derived, resolve
from sacglam.runs import checkpoint, diagnosis
from sacglam.runs.curves import draw_curves
from sacglam.runs.directory import EVALUATED, EVALUATED_RETURN, RunDirectory
from sacglam.runs.display import Display, NewTracker, Tracker
from sacglam.runs.exported import measure, summary_of_best, write_exported
from sacglam.runs.logs import LINE, LineLog
from sacglam.runs.stopping import Stopped, StopSignal
from sacglam.runs.summary import summary_of_end, summary_of_start
from sacglam.types import Evaluation

_STOPPING = "stopping after this interval; another Ctrl-C ends the run at once\n"
LOG_STEPS = 320  # environment steps between lines of metrics.jsonl: ten default intervals, for steadier means
CHECKPOINT_STEPS, _CHECKPOINTS = 2_000, 40  # fewest environment steps between checkpoints; most checkpoints in a run
_IMITATED_TO_CHECKPOINT = 100  # initial updates, a multiple of the loop's `IMITATED`


@memory_explained()
def train(
    config: Config, out: Path, display: Display | None = None, tracker: NewTracker | None = None
) -> dict[str, Any]:
    """Train from scratch in the new folder `out`; returns the summary, as in `summary.json`.

    Sets the process's thread count. While it runs, SIGINT and SIGTERM end it cleanly with a checkpoint.

    Raises:
        SacglamError: the folder holds a run, the model or the environment cannot be used, the loss diverged, ...
    """
    directory, shown = RunDirectory.vacant(out), display or Display()
    for note in check_env(lambda: build_env(config), repeats=config.env.repeats, expert=False).notes:
        shown.note(note)
    resolved = resolve(config, shown.note)
    for key, value in derived(config, resolved).items():
        shown.note(f"derived: {key} = {value}")
    with closing(build(resolved, shown.note)) as parts:
        return Run(directory, resolved, shown, parts, tracker).run(new=True)


@memory_explained()
def resume(
    root: Path,
    display: Display | None = None,
    placement: Sequence[str] = (),
    trusted: bool = False,
    tracker: NewTracker | None = None,
) -> dict[str, Any]:
    """Resume the run in `root` from its newest intact checkpoint, or from the start if it has none yet.

    On a CPU with the same number of threads, weights and metrics match those of an uninterrupted run bit for bit.
    `placement` holds settings such as `learners.count=1`, which change where things run but not the results.
    A `trusted` run may name its own code (docs/guides/security.md).

    Raises:
        SacglamError: there is no run, none of its checkpoints is intact, this machine lacks the device, ...
    """
    directory = RunDirectory.open(root, trusted)
    # With a new placement the number of threads is chosen again, since the old one was for other processes.
    config = resolve(override(directory.config(), ["threads=0", *placement] if placement else ()))
    shown = display or Display()
    # Only the first evaluation needs the agent of `init_from`, which may be gone; checkpoints replace it.
    restored = checkpoint.steps(directory.checkpoints) and directory.summary() is not None
    parts = build(config.model_copy(update={"init_from": None}) if restored else config, shown.note)
    with closing(parts):
        return Run(directory, config, shown, parts, tracker).run()


class Run:
    """One run: its folder, its parts and its loop."""

    def __init__(
        self, directory: RunDirectory, config: Config, display: Display, parts: Parts, tracker: NewTracker | None
    ) -> None:
        """`parts` are built from `config`. Takes no step and writes nothing yet."""
        self._directory = directory
        self._config = config
        self._display = display
        self._parts = parts
        self._loop = Loop(config, parts)
        self._log = LineLog(directory.metrics_file)
        self._samples = LineLog(directory.samples_file, LINE)
        self._tracker = tracker(directory, config.tracking, display) if tracker else Tracker()
        self._stop = StopSignal(_STOPPING)
        self._evaluations = Evaluations(config, parts, display, self._stop.check)
        self._saved_at: tuple[int, int] | None = None  # steps and updates
        self._solved = False  # an evaluation has reached `evaluation.stop_at`
        self._begun: dict[str, Any] = {}  # the summary's first part; once set, the run may take steps and checkpoints
        self._noted: set[str] = set()  # rules of the diagnosis whose message has been shown

    def run(self, new: bool = False) -> dict[str, Any]:
        """Evaluate, train, evaluate again and write the results to the run's folder, which a `new` run claims first."""
        with self._stop, self._directory.locked(), closing(self._tracker):
            if new:
                self._directory.claim(self._config)
            try:
                self._begin(new)
                self._train()
                after = self._evaluations.after() if self._over else {}
            except Stopped:
                return self._stopped()
            return self._summarise(after)

    def _begin(self, new: bool) -> None:
        """Resume from the newest intact checkpoint, if any, and drop later log lines."""
        checkpoints = self._directory.checkpoints
        resumes = bool(checkpoint.steps(checkpoints))
        self._loop.start_up(self._display, self._stop.check)
        if resumes and self._directory.summary() is None:  # evaluate the untrained policy before it is replaced
            self._loop.publish()
            self._evaluate_start()
        if resumes:
            folder, _ = checkpoint.restore_newest(checkpoints, self._loop.restore, self._display.note)
            self._saved_at = self._loop.progress.place
            self._display.note(f"resuming from {folder}; {self._saved_at[0]:,} of {self._config.steps:,} steps done")
        elif not new:
            self._display.note("starting over, since there is no checkpoint yet")
        if damaged := sum(log.rewind(*self._loop.progress.place) for log in (self._log, self._samples)):
            self._display.note(f"{damaged} damaged lines of metrics.jsonl and samples.jsonl were dropped")
        self._solved = any(self._solves(line) for line in self._directory.metrics() if EVALUATED in line)
        self._tracker.start()
        self._loop.publish()
        self._begun = self._evaluate_start()

    def _stopped(self) -> dict[str, Any]:
        """End early with a checkpoint. A run that had finished before, or has not begun yet, is left as it is."""
        if not self._begun or self._begun["finished"]:
            return {"env_steps": 0, "finished": False, **(self._directory.summary() or {})}
        self._checkpoint()
        return self._summarise({})

    def _train(self) -> None:
        """Run the loop until the budget is spent or a stop is requested; log, evaluate and save when due."""
        self._imitate()
        self._display.stage("training", self._config.steps)
        for _ in () if self._stop.requested or self._over else self._loop.intervals():
            self._at_due_times()
            if self._stop.requested or self._over:
                break
        self._checkpoint()

    @property
    def _over(self) -> bool:
        """Whether the budget is spent, or an evaluation was good enough."""
        return self._solved or self._loop.progress.env_steps >= self._config.steps

    def _imitate(self) -> None:
        """Make the initial updates on demonstrations, unless they are done or a stop is requested."""
        progress, updates = self._loop.progress, self._config.replay.demonstration_updates
        if updates and not progress.env_steps:
            self._display.stage("imitating demonstrations", updates)
        for _ in () if self._stop.requested else self._loop.imitate():
            self._append(self._loop.window.flush())
            if progress.updates == updates and self._config.evaluation.every_steps:
                self._evaluate_now()
            if progress.updates % _IMITATED_TO_CHECKPOINT == 0:
                self._checkpoint()
            self._display.advance(progress.updates)
            if self._stop.requested:
                break

    def _at_due_times(self) -> None:
        progress = self._loop.progress
        logged = self._due(LOG_STEPS) or progress.env_steps >= self._config.steps
        if logged:
            self._log_metrics()
        if self._due(self._config.evaluation.every_steps):
            self._evaluate_now()
            if self._solved and not logged:
                self._log_metrics()
        if self._due(SAMPLES_STEPS):
            self._settle()
            episodes = self._evaluations.sample(SAMPLES, progress.env_steps)
            self._samples.append({**self._counters(), "episodes": episodes})
        if self._due(max(CHECKPOINT_STEPS, self._config.steps // _CHECKPOINTS)):
            self._checkpoint()
        self._note_warnings()
        self._display.advance(progress.env_steps)

    def _log_metrics(self) -> None:
        metrics = {**self._loop.window.flush(), **self._parts.metrics(self._loop.progress.updates)}
        self._append(metrics)
        self._display.metrics(self._loop.progress, metrics)

    def _note_warnings(self) -> None:
        """Warn once of each reason why the run may not learn, while there is still time to start over."""
        now, interval, steps = self._loop.progress.env_steps, self._config.algo.update_interval, self._config.steps
        due = any(now - interval < share * steps <= now < steps for share in diagnosis.CHECKS)
        causes = self._diagnose({}) if due and now - interval >= self._config.random_steps else {}
        for rule in [rule for rule in causes if rule not in self._noted]:
            self._display.note(f"warning after {now:,} of {steps:,} steps: {causes[rule]}")
        self._noted.update(causes)

    def _diagnose(self, after: Mapping[str, Evaluation]) -> dict[str, str]:
        """Reasons why the run does not learn, if any: messages by rule."""
        progress = self._loop.progress
        evidence = diagnosis.Evidence(
            config=self._config,
            lines=self._log.lines(),
            env_steps=progress.env_steps,
            episodes=progress.episodes,
            updates=self._parts.learners.begun - self._config.replay.demonstration_updates,
            missing=self._parts.collector.experience.missing(),
            random_success=self._begun["success_random"]["overall"],
            after=after,
        )
        if evidence.low and self._config.algo.has_q:
            self._settle()
            evidence = replace(evidence, played=self._evaluations.sample(diagnosis.PLAYED, progress.env_steps))
        return diagnosis.diagnose(evidence)

    def _due(self, every: int) -> bool:
        """Whether the last interval reached or passed a multiple of `every` environment steps; 0 means never."""
        now, interval = self._loop.progress.env_steps, self._config.algo.update_interval
        return every > 0 and now // every > (now - interval) // every

    def _append(self, metrics: Mapping[str, float]) -> None:
        line = {**self._counters(), **metrics}
        self._log.append(line)
        if self._tracker.logged(line):
            self._stop.requested = True

    def _counters(self) -> dict[str, float]:
        progress = self._loop.progress
        seconds = {"seconds": round(progress.seconds, 3), "cpu_seconds": round(progress.cpu_seconds, 3)}
        return {"env_steps": progress.env_steps, "updates": progress.updates, **seconds}

    def _settle(self) -> None:
        """Wait for pending updates: engines and learner then have the same policy."""
        with self._loop.training_time():
            self._loop.finish_updates()

    def _checkpoint(self) -> None:
        """Write a checkpoint unless the current state is saved already. A broken policy raises and is not saved."""
        if self._saved_at == self._loop.progress.place:
            return
        self._settle()
        with self._parts.clock.phase("checkpoint"):
            self._parts.collector.rollout.check_policy()
            checkpoint.save(self._directory.checkpoints, self._loop.progress.place, self._loop.checkpoint())
        self._saved_at = self._loop.progress.place

    def _evaluate_start(self) -> dict[str, Any]:
        """The summary's first part: the random and the untrained policy. A resumed run has evaluated them already."""
        start = self._directory.summary()
        if start is None:
            policies = self._parts.scorer.log_policy(first_states(self._config))
            if message := diagnosis.collapsed_start(mean_entropy(policies), uniform_entropy(policies)):
                self._display.note(message)
            start = summary_of_start(self._config, self._evaluations.random(), self._evaluations.before())
            start["config_sha256"] = self._directory.config_hash()
            self._directory.write_summary(start)
        return start

    def _summarise(self, after: Mapping[str, Evaluation]) -> dict[str, Any]:
        """Write and return the summary; for a finished run, write the agent as well."""
        config, parts = self._config, self._parts
        end = summary_of_end(config, self._loop.progress, parts.clock.seconds, parts.processes(config), after)
        summary = {**self._begun, **end, "warnings": list(self._diagnose(after).values()) if after else []}
        if best := self._directory.best_summary():
            names = ("env_steps", "updates", "success_after", "return_after")
            summary["best"] = {name: best[name] for name in names if name in best}
        self._directory.write_summary(summary)
        if after:
            self._export(self._directory.adapter, summary)
        draw_curves(self._directory)
        return summary

    def _evaluate_now(self) -> None:
        """Evaluate during training, and keep the agent if it is the best so far."""
        self._settle()  # so that the agent kept is the one evaluated
        metrics, best = self._evaluations.interim(), self._directory.best_summary()
        summary = summary_of_best(self._begun, {**self._counters(), **metrics}, self._config)
        if best is None or measure(summary) > measure(best):
            self._export(self._directory.best, summary)
        self._append(metrics)
        self._solved |= self._solves(metrics)
        what = f"return {measure(summary):.2f}" if EVALUATED_RETURN in metrics else f"success {metrics[EVALUATED]:.2f}"
        early = "; finished early (evaluation.stop_at)" if self._solved else ""
        self._display.note(f"greedy {what} after {self._loop.progress.env_steps:,} steps{early}")

    def _solves(self, evaluation: Mapping[str, float]) -> bool:
        return evaluation[EVALUATED] >= (self._config.evaluation.stop_at or float("inf"))

    def _export(self, folder: Path, summary: Mapping[str, Any]) -> None:
        write_exported(folder, self._parts.learners.exported(), self._config, self._loop.progress.env_steps, summary)
