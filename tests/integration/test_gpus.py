"""GPUs where there are none: torch.cuda has stand-ins, and everything else is real."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

INIT_DISTRIBUTED = """
import os, torch
import torch.distributed as dist

torch._C._cuda_setDevice = lambda index: print("device", index)
join = dist.init_process_group

def joined(backend, **options):  # NCCL asks for a GPU at once
    print("backend", backend, options["rank"], options["world_size"], options["timeout"].total_seconds())
    join("gloo", **options)

dist.init_process_group = joined
from sacglam.learner.deepspeed import init_distributed
init_distributed(0, 1, f"file://{os.environ['MEETING']}", os.environ["DEVICE"], 61.0)

from deepspeed.accelerator import get_accelerator
from deepspeed.utils import groups
timeout = groups._get_data_parallel_group()._get_backend(torch.device("cpu")).options._timeout
print("accelerator", get_accelerator().device_name(), get_accelerator().communication_backend_name())
print("ZeRO", timeout.total_seconds(), os.environ["LOCAL_RANK"])
"""


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
@pytest.mark.parametrize(("device", "index"), [("cuda", 0), ("cuda:3", 3)])
def test_a_rank_takes_its_gpu_and_joins_over_nccl(device: str, index: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INIT_DISTRIBUTED],
        env=os.environ | {"MEETING": str(tmp_path / "meeting"), "DEVICE": device},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-4:] == [
        f"device {index}",
        "backend nccl 0 1 61.0",
        "accelerator cuda nccl",
        f"ZeRO 61.0 {index}",
    ]
