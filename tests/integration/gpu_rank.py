"""One rank on a fake GPU, with gloo for NCCL: `python -m tests.integration.gpu_rank RANK WORLD FOLDER STAGE...`."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from sacglam.learner import deepspeed
from tests.fake_gpu import FakeGpu, fake_gpu
from tests.integration.rank import BATCHES, QUERIES, TIMEOUT_S, make_learner, settings

# The actor learns from the second update on, and DeepSpeed's timers would wait for the GPU from the third.
QUICK = ("algo.warmup_updates=1", "algo.micro_batch_size=4", "model.dtype=float32")
FIRST, LAST = BATCHES[:2], BATCHES[2:3]


def trial(world: int, stage: int, device: str, gpu: FakeGpu | None = None) -> dict[str, Any]:
    """Updates, the last one's host waits, and a resume before it."""
    config = settings(world, stage, *QUICK, f"device={device}")
    learner = make_learner(config)
    found: dict[str, Any] = {"metrics": learner.learn(FIRST).metrics}
    half = learner.state()
    waits_before = gpu.waits.copy() if gpu else {}
    with mock.patch.object(dist, "broadcast", side_effect=dist.broadcast) as broadcast:
        found["metrics"] += learner.learn(LAST).metrics
    found["waits"] = gpu.waits - waits_before if gpu else {}
    found["broadcasts"] = broadcast.call_count
    found["end"], found["policy"] = learner.state(), learner.publish(QUERIES).probe
    again = make_learner(config)
    again.load_state(*half)
    again.learn(LAST)
    found["resumed"] = again.state()
    return found


def main() -> None:
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    deepspeed.PERSISTENT_ELEMENTS = 0  # so that even the smallest weights are sharded
    join = dist.init_process_group

    def join_by_gloo(backend: str, device_id: torch.device | None = None, **options: Any) -> None:
        assert backend == "nccl"
        join("gloo", **options)

    with fake_gpu(hooks=True) as gpu, mock.patch.object(dist, "init_process_group", join_by_gloo):
        deepspeed.init_distributed(rank, world, f"file://{folder}/meeting-{world}", "cuda", TIMEOUT_S)
        found = {stage: trial(world, stage, "cuda", gpu) for stage in map(int, sys.argv[4:])}
    (folder / f"{world}-{rank}.pkl").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
