"""Handing an adapter over through Ray, from a learner's process to an engine that has loaded it: wall and CPU seconds.

python -m benchmarks.handoff --rank 29 --dtype bfloat16                   # 35 MB as float32, in 420 tensors
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import common, random_model
from sacglam import cpu
from sacglam.build import ENGINE, build_learner, build_model, host_engine
from sacglam.clock import PhaseClock
from sacglam.config import Config
from sacglam.config.sections import EnginesConfig, LoraSettings, ModelConfig
from sacglam.learner.learner import Learner
from sacglam.runtime.engines import EngineGroup
from sacglam.runtime.learners import LearnerGroup
from sacglam.runtime.ray import RayRuntime, RayWorker, WorkerSpec

START_S = 600.0


def host_learner(config: Config) -> Learner:
    """A learner on plain torch, in the process that calls this."""
    cpu.prepare(config.threads)
    return build_learner(config, build_model(config), PhaseClock())


def with_cpu_clock(host: Callable[..., Any], *args: Any) -> Any:
    """What `host` returns, with a method for the CPU seconds of its process."""
    target = host(*args)
    target.cpu_seconds = time.process_time
    return target


def handoffs(config: Config, repeats: int) -> dict[str, Any]:
    """Medians after one hand-off to warm up, and the adapter's bytes."""
    gpus = int(config.device.startswith("cuda"))
    runtime = RayRuntime(None, [WorkerSpec("Learner", gpus=gpus), WorkerSpec("Engine", gpus=gpus)])
    try:
        workers: list[RayWorker] = [runtime.spawn(0), runtime.spawn(1)]
        workers[0].build(with_cpu_clock, host_learner, config)
        workers[1].build(with_cpu_clock, host_engine, ENGINE, config, config.threads)
        learner = LearnerGroup(workers[:1], START_S)
        engines = EngineGroup(lambda index: workers[1], 1, START_S, common.log)
        engines.wait_ready()

        def clocks() -> tuple[float, float]:
            elsewhere = sum(worker.submit("cpu_seconds").result(START_S) for worker in workers)
            return time.perf_counter(), time.process_time() + elsewhere

        found: dict[str, list[float]] = {"publish": [], "load": [], "handoff": [], "handoff_cpu": []}
        for _ in range(repeats + 1):
            start, start_cpu = clocks()
            adapter = learner.publish(())
            published = time.perf_counter()
            engines.load(adapter)
            loaded = time.perf_counter()
            found["handoff_cpu"].append(clocks()[1] - start_cpu)
            for part, took in (
                ("publish", published - start),
                ("load", loaded - published),
                ("handoff", loaded - start),
            ):
                found[part].append(took)
    finally:
        runtime.close()
    seconds = {part: round(median(times[1:]), 4) for part, times in found.items()}
    return {"adapter_bytes": sum(map(len, adapter.files.values())), "seconds": seconds}


def main() -> None:
    parser = common.parser(__doc__ or "")
    parser.add_argument("--rank", type=int, default=common.LORA_RANK, help="the adapter's (model.lora.rank)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "model"
        random_model.write(options.model_shape, folder)
        model = ModelConfig(name=str(folder), dtype=options.dtype, lora=LoraSettings(rank=options.rank))
        engines = EnginesConfig(count=1)
        config = Config(threads=options.threads, device=options.device, model=model, engines=engines)
        common.emit([{"name": "handoff", **describe(options), **handoffs(config, options.repeats)}])


def describe(options: argparse.Namespace) -> dict[str, Any]:
    """The conditions of the measurement."""
    chosen = {name: getattr(options, name) for name in ("model_shape", "rank", "dtype", "repeats")}
    return {**chosen, **common.machine(options.device, options.threads)}


if __name__ == "__main__":
    main()
