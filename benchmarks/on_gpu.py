"""What only a GPU can confirm: training in one process, ranks over NCCL, the memory forecast, the kernels of an update.

python -m benchmarks.on_gpu train --dtype float32
python -m benchmarks.on_gpu ranks --device cpu --world 2
python -m benchmarks.on_gpu memory --model-shape smollm
python -m benchmarks.on_gpu kernels --model-shape qwen --rows 32
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import common, random_model, update
from sacglam import config
from sacglam.build import build, build_learner, build_model
from sacglam.clock import PhaseClock
from sacglam.collector import first_states
from sacglam.config import Config
from sacglam.learner.learner import Learner
from sacglam.loop import Loop
from sacglam.memory import peak_bytes, resident_bytes
from sacglam.resolve import in_one_process, on_this_machine, resolve
from sacglam.runs.display import Display
from sacglam.tools.dry_run.calibrate import play
from sacglam.tools.dry_run.forecast import forecast, placed

STAGES = (0, 3)
TIMEOUT_S = 45.0  # less than gpu_check gives the part, so that what NCCL says is seen
SETTINGS = ("steps=640", "threads=1", "env.copies=32", "algo.warmup_updates=0")
TRAININGS = {"sac": None, "ppo": common.ROOT / "configs" / "simple" / "ppo.yaml"}  # None: the quickstart
SHORT = ("steps=320", "env.copies=8", "algo.update_interval=32", "algo.batch_size=32", "critic.hidden=[64]")


def learner(settings: Config) -> Learner:
    """The learner of a run, as `sacglam train` builds it."""
    return build_learner(settings, build_model(settings), PhaseClock())


def train(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Short runs in this process, and how far the policy on the device is from the CPU's with the same weights."""
    common.prepare(options)
    return [_training(algorithm, options) for algorithm in TRAININGS]


def _training(algorithm: str, options: argparse.Namespace) -> dict[str, Any]:
    words = ["threads=1", f"model.dtype={options.dtype}", *SHORT]
    words += ["algo.warmup_updates=4"] if algorithm == "sac" else ["algo.epochs=2"]
    settings = config.load(TRAININGS[algorithm], [*words, f"device={options.device}"])
    on_cpu, states = config.override(settings, ["device=cpu"]), first_states(settings)
    with closing(build(resolve(settings))) as parts, closing(build(resolve(on_cpu))) as twin:
        loop = Loop(settings, parts)
        for _ in loop.intervals():
            pass
        twin.learners.load_state(*parts.learners.state())
        policies = zip(parts.scorer.log_policy(states), twin.scorer.log_policy(states), strict=True)
        gap = max(float(np.abs(ours - theirs).max()) for ours, theirs in policies)
        batches, metrics = [play(on_cpu).batch], []
        for side in (parts, twin):
            side.learners.learn(batches, 1, None)
            metrics.append(side.learners.finish().metrics[0])
        ours, theirs = metrics
        update_gap = max(abs(ours[name] - theirs[name]) / max(1.0, abs(theirs[name])) for name in theirs)
    row = {
        "name": "one process",
        "algorithm": algorithm,
        "dtype": options.dtype,
        "updates": loop.progress.updates,
        "seconds": round(loop.progress.seconds, 2),
        "seconds_by_phase": {name: round(seconds, 2) for name, seconds in parts.clock.seconds.items()},
        "metrics": loop.window.flush(),
        "gap_to_cpu": gap,
        "update_gap_to_cpu": update_gap,  # losses and the gradient's norm of one more update
        **common.machine(options.device, 1),
    }
    common.log(f"  {algorithm}: {row['updates']} updates in {row['seconds']} s, log pi {gap:.2g} from the CPU's")
    assert row["updates"], row
    assert math.isfinite(gap), row
    assert options.dtype != "float32" or gap < 1e-3, row
    assert update_gap < (1e-3 if options.dtype == "float32" else 0.1), row
    return row


def ranks(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Updates on several ranks, each a process with its own GPU, against plain torch on the first one."""
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(options.world):
            words = ["ranks", "--rank", str(rank), "--folder", folder, "--world", str(options.world)]
            command = [sys.executable, "-m", "benchmarks.on_gpu", *words, "--device", options.device]
            env = os.environ | ({"CUDA_VISIBLE_DEVICES": _gpu(rank)} if options.device == "cuda" else {})
            processes.append(subprocess.Popen(command, env=env, cwd=common.ROOT))
        failed = [rank for rank, process in enumerate(processes) if process.wait()]
        if failed:
            raise SystemExit(f"rank {failed[0]} of {options.world} failed; see above")
        rows: list[dict[str, Any]] = json.loads(Path(folder, "rows").read_text())
    return rows


def _gpu(rank: int) -> str:
    """The name of a rank's GPU, which is not its number where CUDA_VISIBLE_DEVICES leaves out some."""
    own = os.environ.get("CUDA_VISIBLE_DEVICES")
    return own.split(",")[rank] if own else str(rank)


def rank(options: argparse.Namespace) -> None:
    """One rank; the first leaves the rows."""
    from sacglam.learner.deepspeed import init_distributed

    common.prepare(options)
    meeting = f"file://{options.folder}/meeting"
    init_distributed(options.rank, options.world, meeting, options.device, TIMEOUT_S)
    shared = ["algo.batch_size=15", "algo.micro_batch_size=4", f"device={options.device}", *SETTINGS]
    alone = config.load(None, shared)
    batches = [play(alone).batch] * 2
    reference = learner(on_this_machine(alone)).learn(batches).metrics
    rows = []
    for stage in STAGES:
        words = [*shared, "engines.count=1", f"learners.count={options.world}", f"learners.zero_stage={stage}"]
        started = time.perf_counter()
        found = learner(config.load(None, words)).learn(batches).metrics
        pairs = [(mine[name], other[name]) for mine, other in zip(found, reference, strict=True) for name in other]
        gap = max(abs(mine - other) / max(1.0, abs(other)) for mine, other in pairs)
        common.log(f"  rank {options.rank}, stage {stage}: metrics differ by {gap:.2g}")
        assert gap < 1e-3, (stage, found, reference)
        seconds = round(time.perf_counter() - started, 2)
        where = common.machine(options.device, 1)
        rows.append({"name": "ranks", "world": options.world, "stage": stage, "gap": gap, "seconds": seconds, **where})
    if options.rank == 0:
        Path(options.folder, "rows").write_text(json.dumps(rows))


def memory(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What `--dry-run` predicts for one process, and what its updates take."""
    common.prepare(options)
    with tempfile.TemporaryDirectory() as folder:
        words = [*SETTINGS, f"device={options.device}", f"model.dtype={options.dtype}"]
        words.append(f"algo.batch_size={options.rows}")
        if options.model_shape != "tiny":
            random_model.write(options.model_shape, Path(folder) / "model")
            words.append(f"model.name={folder}/model")
        settled, where = placed(config.load(None, words))
        parts = forecast(settled, where, Display()).processes[-1].parts
        batch = play(settled).batch
        on_gpu = options.device.startswith("cuda")
        held = 0 if on_gpu else resident_bytes()
        made: list[Learner] = []

        def run() -> None:
            made.append(learner(in_one_process(settled, options.device)))
            for _ in range(2):  # the second one has Adam's moments
                made[0].learn([batch])

        peak = peak_bytes(run, options.device)
    expected = {name: size for name, size in parts.items() if size}
    row = {
        "name": "memory",
        "model_shape": options.model_shape,
        "rows": options.rows,
        "forecast_bytes": expected,
        "forecast": sum(expected.values()),
        "peak": None if peak is None else peak + held,
        **common.machine(options.device, options.threads),
    }
    common.log(f"  forecast {row['forecast']:,}, peak {row['peak']:,} bytes")
    return [row]


def kernels(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Kernels that an update launches, what they take one after the other, and what the update takes.

    Compare with the rows of `benchmarks.kernels`, which counts the same update without a GPU.
    """
    common.prepare(options)
    on_gpu = options.device.startswith("cuda")
    run = update.build("packed", options, options.actions)
    (seconds,) = common.interleaved({"update": run}, options.repeats, options.device).values()
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiled:
        run()
    events = [each for each in profiled.events() or [] if not on_gpu or "CUDA" in str(each.device_type)]
    busy = sum(each.self_device_time_total if on_gpu else each.self_cpu_time_total for each in events) / 1e3
    row = {
        "name": "kernels",
        "model": options.model_shape,
        "operation": "sac",
        "rows": options.rows,
        "kernels" if on_gpu else "operations": len(events),
        "milliseconds_busy": round(busy, 1),
        "milliseconds": round(1e3 * min(seconds), 1),
        "dtype": options.dtype,
        **common.machine(options.device, options.threads),
    }
    return [row]


PARTS = {"train": train, "ranks": ranks, "memory": memory, "kernels": kernels}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("part", choices=tuple(PARTS))
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--world", type=int, default=2, help="ranks")
    options.add_argument("--model-shape", choices=[*common.SHAPES, *common.T5_SHAPES], default="tiny")
    options.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    options.add_argument("--rows", type=int, default=32)
    options.add_argument("--actions", type=int, default=7, help="as Playground's states have")
    options.add_argument("--prompt-tokens", type=int, default=45)
    options.add_argument("--action-tokens", type=int, default=4)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--bucket", type=int)
    options.add_argument("--rank", type=int, help=argparse.SUPPRESS)  # in a rank's own process
    options.add_argument("--folder", help=argparse.SUPPRESS)
    given = options.parse_args(namespace=argparse.Namespace(layers=None, micro_batch=None, reference="plain", alike=0))
    if given.rank is not None:
        rank(given)
    else:
        common.emit(PARTS[given.part](given))


if __name__ == "__main__":
    main()
