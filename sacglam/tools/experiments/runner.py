"""Runs `sacglam train` in processes, a few at a time, and picks up where an earlier command left off."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from sacglam import files, subprocesses
from sacglam.cpu import cores, default_threads
from sacglam.errors import ConfigError, write_explained
from sacglam.runs.directory import locked_folder
from sacglam.runs.display import Display
from sacglam.runs.stopping import Stopped, StopSignal
from sacglam.runtime.placement import cluster, machine
from sacglam.tools.experiments.plan import Run
from sacglam.tools.experiments.results import steps_of

_POLL_S = 1.0
_LOG_LINES = 12


def run_all(runs: Sequence[Run], jobs: int, root: Path, display: Display) -> bool:
    """Run what is not finished, `jobs` at a time in the given order, even if some fail; returns whether none did.

    The first SIGINT or SIGTERM is passed on to the runs, which write a checkpoint, and no more are started. A second
    one ends them at once. Runs inherit the lock of the folder `root`. So a run that outlives a killed command keeps
    the folder locked, and no other process can start to write into the same run.

    Raises:
        ConfigError: this machine has too few GPUs.
        RunDirectoryError: another process works in `root`.
        Stopped: by such a signal.
    """
    busy = f"another sacglam command, or a run that it started, is using {root}; wait for it, or choose another --out"
    stopping, succeeded = False, True
    with locked_folder(root, busy) as lock, StopSignal() as stop:
        waiting, active = [run for run in runs if not run.finished], dict[Run, subprocess.Popen[bytes]]()
        free, used = gpu_shares(waiting, min(jobs, len(waiting))), dict[Run, dict[str, str]]()
        finished, share = len(runs) - len(waiting), {}
        if jobs > 1:  # the most threads that a run takes by default
            share = {"OMP_NUM_THREADS": str(max(1, min(default_threads(), cores() // jobs)))}
        display.note(f"{len(runs)} runs, {finished} of them finished before; Ctrl-C stops, the same command resumes")
        display.stage("all runs", sum(run.config.steps for run in runs))
        steps = {run: steps_of(run) for run in runs}
        try:
            while waiting or active:
                if stop.requested and not stopping:
                    stopping = True
                    waiting.clear()
                    display.note("stopping: the runs finish their interval and write a checkpoint")
                    for process in active.values():
                        process.send_signal(signal.SIGINT)
                for run in waiting[: jobs - len(active)]:
                    waiting.remove(run)
                    used[run] = free.pop(0)
                    active[run] = _start(run, lock, {**share, **used[run]})
                    display.note(f"{run.title}: training, output in {run.log}")
                time.sleep(_POLL_S)
                steps |= {run: steps_of(run) for run in active}
                display.advance(sum(steps.values()))
                for run, process in list(active.items()):
                    if process.poll() is not None:
                        del active[run]
                        free.append(used.pop(run))
                        success = process.returncode == 0 and run.finished
                        succeeded &= success or stopping
                        display.note(f"{run.title}: {_outcome(run, success, stopping)}")
        finally:
            for process in active.values():
                process.kill()
                process.wait()
    if stopping:
        raise Stopped
    return succeeded


def gpu_shares(runs: Sequence[Run], jobs: int) -> list[dict[str, str]]:
    """Environment variables that give each of the parallel `jobs` its own GPUs of this machine.

    Several runs share a GPU only if each needs a single one: runs with engines or ranks do not know of each other.

    Raises:
        ConfigError: there are too few.
    """
    configs = [run.config for run in runs if run.config.device != "cpu"]
    named = any(":" in config.device for config in configs)
    if jobs <= 1 or not configs or named or cluster() or not (gpus := machine().gpus):
        return [{}] * jobs
    needed = max(1, *(c.engines.count * c.engines.tensor_parallel + c.learners.count for c in configs))
    if jobs * needed > gpus and not all(config.in_one_process for config in configs):
        raise ConfigError(
            f"expected {jobs * needed} GPUs for --jobs {jobs}, since a run takes up to {needed}; this machine has "
            f"{gpus}: use --jobs {max(1, gpus // needed)}"
        )
    ids = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))).split(",")
    shares = [[ids[(job * needed + number) % gpus] for number in range(needed)] for job in range(jobs)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(share)} for share in shares]


def _start(run: Run, lock: int, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    with write_explained(run.log):
        run.log.parent.mkdir(parents=True, exist_ok=True)
        with files.opened(run.log, "ab") as log:
            return subprocess.Popen(
                run.command(),
                env=subprocesses.environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock],
                start_new_session=True,  # `run_all` passes on Ctrl-C once
            )


def _outcome(run: Run, success: bool, stopping: bool) -> str:
    """What became of a run, in a few words; if it failed, also the end of its log."""
    if success:
        summary = run.directory.summary() or {}
        earned = "" if (mean := summary.get("return_after")) is None else f", return {mean:.2f}"
        found = f"success {summary['success_after']['overall']:.3f}{earned}"
        return f"{found} after {summary['train_seconds']:.0f} s of training"
    if stopping:
        return "stopped; the same command resumes it"
    end = [line for line in run.log.read_text("utf-8", "replace").splitlines() if line.strip()][-_LOG_LINES:]
    return "\n  ".join([f"FAILED. The end of {run.log}:", *end])
