"""GPUs where there are none: Ray is given fake ones, and torch.cuda stand-ins; everything else is real."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks import common, random_model
from sacglam import build, config
from sacglam.config import Config
from sacglam.models.loading import BUILTIN
from sacglam.runtime.group import Worker
from sacglam.runtime.learners import LearnerGroup
from sacglam.runtime.placement import Machine, overrides
from sacglam.runtime.ray import RayRuntime, WorkerSpec
from tests.integration import processes

pytestmark = pytest.mark.slow

OWN = [str(number) for number in range(10, 18)]
"""The GPUs that a user's CUDA_VISIBLE_DEVICES leaves to us."""


class Given(NamedTuple):
    device: str
    rank: int
    world: int
    gpus: list[str]


INIT_DISTRIBUTED = """
import os, torch
import torch.distributed as dist

torch._C._cuda_setDevice = lambda index: print("device", index)
join = dist.init_process_group

def joined(backend, device_id=None, **options):  # NCCL asks for a GPU at once
    print("backend", backend, options["rank"], options["world_size"], options["timeout"].total_seconds(), device_id)
    join("gloo", **options)

dist.init_process_group = joined
from sacglam.learner.deepspeed import init_distributed
init_distributed(int(os.environ["NUMBER"]), 2, f"file://{os.environ['MEETING']}", os.environ["DEVICE"], 61.0)

from deepspeed.accelerator import get_accelerator
from deepspeed.utils import groups
timeout = groups._get_data_parallel_group()._get_backend(torch.device("cpu")).options._timeout
print("accelerator", get_accelerator().device_name(), get_accelerator().communication_backend_name())
print("ZeRO", timeout.total_seconds(), os.environ["LOCAL_RANK"])
"""


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
@pytest.mark.parametrize(("device", "index"), [("cuda", 0), ("cuda:3", 3)])
def test_two_ranks_take_their_gpus_and_join_over_nccl(device: str, index: int, tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", INIT_DISTRIBUTED],
            env=os.environ | {"MEETING": str(tmp_path / "meeting"), "DEVICE": device, "NUMBER": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    for number, (said, errors) in enumerate([process.communicate(timeout=300) for process in ranks]):
        assert ranks[number].returncode == 0, errors
        assert said.splitlines()[-4:] == [
            f"device {index}",
            f"backend nccl {number} 2 61.0 cuda:{index}",
            "accelerator cuda nccl",
            f"ZeRO 61.0 {index}",
        ]


ENGINE_CONFIG = """
import json, os, sys, types

sys.modules["vllm._C_stable_libtorch"] = types.ModuleType("CUDA's operators, which the build for CPUs lacks")
import vllm.config.vllm as checked
from vllm import platforms
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms.cuda import NonNvmlCudaPlatform
from vllm.platforms.interface import DeviceCapability

from sacglam.config import load
from sacglam.models.loading import load_text
from sacglam.scoring.vllm.engine import _arguments

class H100(NonNvmlCudaPlatform):
    get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(9, 0))
    get_device_name = classmethod(lambda cls, device_id=0: "NVIDIA H100 80GB HBM3")
    get_device_total_memory = classmethod(lambda cls, device_id=0: 80 * 2**30)
    num_compute_units = classmethod(lambda cls, device_id=0: 132)
    is_fully_connected = classmethod(lambda cls, devices: True)
    device_count = classmethod(lambda cls: 4)

platforms._current_platform = H100()
checked.HAS_TRITON = True  # as with torch for CUDA
found = []
for parallel in (1, 2):
    words = ["device=cuda", "engines.count=1", "learners.count=1", "model.dtype=bfloat16"]
    config = load(None, [*words, f"engines.tensor_parallel={parallel}", f"model.name={os.environ['MODEL']}"])
    made = EngineArgs(**_arguments(config, load_text(config.model), on_cpu=False)).create_engine_config()
    found.append({
        "types": [str(made.model_config.dtype), str(made.lora_config.lora_dtype)],
        "worker": made.parallel_config.worker_cls,
        "executor": made.parallel_config.distributed_executor_backend,
        "world": made.parallel_config.world_size,
        "prefix cache": made.cache_config.enable_prefix_caching,
        "memory": made.cache_config.gpu_memory_utilization,
        "eager": made.model_config.enforce_eager,
    })
print(json.dumps(found))
"""


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_takes_our_arguments_on_an_h100(tmp_path: Path) -> None:
    common.shape_config("qwen").save_pretrained(tmp_path)
    for name in random_model.TOKENIZER_FILES:
        shutil.copy(BUILTIN / name, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", ENGINE_CONFIG],
        env=os.environ | {"MODEL": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    one, two = json.loads(done.stdout.splitlines()[-1])
    assert one == {
        "types": ["torch.bfloat16", "torch.bfloat16"],
        "worker": "vllm.v1.worker.gpu_worker.Worker",
        "executor": "uni",
        "world": 1,
        "prefix cache": True,
        "memory": 0.85,
        "eager": False,
    }
    assert two == one | {"executor": "mp", "world": 2}


class Here:
    """What an engine or a rank was given, in its place."""

    def __init__(self, settings: Config, threads: int, rank: int = -1, world: int = 0, meeting: str = "") -> None:
        self.given = Given(settings.device, rank, world, os.environ["CUDA_VISIBLE_DEVICES"].split(","))

    def tell(self) -> tuple[Any, ...]:
        return tuple(self.given)


class Reserved(RayRuntime):
    """The runtime of one layout in a Ray that is there already, since each start of Ray takes seconds."""

    def __init__(self, running: RayRuntime, specs: Sequence[WorkerSpec]) -> None:
        self.__dict__ = {**running.__dict__, "_specs": list(specs), "_workers": []}
        self._reserve(120)

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        remove = importlib.import_module("ray.util.placement_group").remove_placement_group
        remove(self._group)


@pytest.fixture(scope="module")
def eight_gpus() -> Iterator[RayRuntime]:
    """Ray with eight GPUs, for a user whose environment has Ray leave CUDA_VISIBLE_DEVICES alone."""
    ray = pytest.importorskip("ray", reason="Ray is not installed; see docs/start/install.md")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", "1")
        patch.setenv("CUDA_VISIBLE_DEVICES", ",".join(OWN))
        with closing(RayRuntime(None, [WorkerSpec("Engine", 1, len(OWN))])) as running:
            Reserved.close(running)  # type: ignore[arg-type]  # its reservation
            yield running


@pytest.fixture
def placed(eight_gpus: RayRuntime, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[Given]]]:
    """Builds a run on a machine with some GPUs; what its engine and its ranks were given."""
    made: list[Reserved] = []

    def runtime(address: str | None, specs: Sequence[WorkerSpec]) -> Reserved:
        made.append(Reserved(eight_gpus, specs))
        return made[-1]

    def build_on(gpus: int, *options: int | None, vllm: bool = True) -> list[Given]:
        monkeypatch.setattr(build, "machine", lambda: Machine(gpus, 8))
        engines, learners, parallel = options or (None,) * 3
        words = overrides(gpus, engines, learners, parallel, None, vllm)
        build.build(config.load(None, [*words, "model.dtype=bfloat16", "env.copies=32"]))
        return [tell(worker) for worker in made[-1]._workers]

    monkeypatch.setattr(build, "RayRuntime", runtime)
    monkeypatch.setattr(build, "host_engine", lambda factory, settings, threads: Here(settings, threads))
    monkeypatch.setattr(build, "host_learner", Here)
    yield build_on
    made[-1].close()


def tell(worker: Worker) -> Given:
    return Given(*worker.submit("tell").result(120))


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_the_engine_and_every_rank_see_a_gpu_of_their_own(placed: Callable[..., list[Given]], gpus: int) -> None:
    engine, *ranks = found = placed(gpus)
    assert (engine.device, engine.world) == ("cuda", 0)
    assert [(rank.device, rank.rank, rank.world) for rank in ranks] == [("cuda", n, gpus - 1) for n in range(gpus - 1)]
    assert [len(each.gpus) for each in found] == [1] * gpus
    assert sorted(gpu for each in found for gpu in each.gpus) == OWN[:gpus]


def test_without_vllm_every_gpu_has_a_rank(placed: Callable[..., list[Given]]) -> None:
    found = placed(4, vllm=False)
    assert [(rank.device, rank.rank, rank.world) for rank in found] == [("cuda", n, 4) for n in range(4)]
    assert sorted(gpu for rank in found for gpu in rank.gpus) == OWN[:4]


def test_an_engine_over_two_gpus_sees_both(placed: Callable[..., list[Given]]) -> None:
    found = placed(4, None, None, 2)
    assert [len(each.gpus) for each in found] == [2, 1, 1]
    assert sorted(gpu for each in found for gpu in each.gpus) == OWN[:4]


def test_an_engine_next_to_the_learner_gets_its_gpu_again_after_a_restart(
    placed: Callable[..., list[Given]], eight_gpus: RayRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(build, "_start_learners", lambda runtime, *_: started.append(runtime))
    (engine,) = placed(1, 1, 0, 1)
    assert engine.gpus == OWN[:1]
    started[0]._workers[0].kill()
    again = started[0].spawn(0).build(Here, config.load(None, []), 1)
    assert tell(again).gpus == OWN[:1]


BURN = "import sys, time\nsys.stdin.readline()\nwhile time.process_time() < 0.4: pass\nprint(flush=True)\ninput()"


class Busy:
    """Works in its process and in a child, as vLLM does with several GPUs."""

    def __init__(self) -> None:
        self.child = subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def work(self) -> None:
        assert self.child.stdin
        assert self.child.stdout
        self.child.stdin.write(b"\n")
        self.child.stdin.flush()
        start = time.process_time()
        while time.process_time() - start < 0.4:
            pass
        self.child.stdout.readline()


def test_cpu_seconds_of_a_worker_are_those_of_its_calls(eight_gpus: RayRuntime) -> None:
    runtime = Reserved(eight_gpus, [WorkerSpec("Engine", 1, 1)])
    with closing(runtime):
        call = runtime.spawn(0).build(Busy).submit("work", reply=False)
        assert runtime.cpu_seconds == 0
        assert call.result(120) is None
        assert 0.7 < runtime.cpu_seconds < 4


class Parcel:
    """Counts how often it is packed."""

    packed = 0

    def __reduce__(self) -> tuple[type[Parcel], tuple[()]]:
        Parcel.packed += 1
        return Parcel, ()


class Rank:
    def load_state(self, tensors: dict[str, Any], values: dict[str, Any]) -> None:
        assert isinstance(tensors["weight"], Parcel)


def test_what_all_ranks_are_given_is_packed_once(eight_gpus: RayRuntime) -> None:
    runtime = Reserved(eight_gpus, [WorkerSpec("Learner", 1, 1)] * 3)
    with closing(runtime):
        group = LearnerGroup([runtime.spawn(number).build(Rank) for number in range(3)], timeout_s=120)
        group.load_state({"weight": Parcel()}, {"updates": 4})
    assert group.version == 4
    assert Parcel.packed == 1


class WithChild:
    """Like an engine on several GPUs, whose memory is in its children's hands."""

    def __init__(self) -> None:
        self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def pids(self) -> tuple[int, int]:
        return os.getpid(), self.child.pid


def test_children_of_an_engine_that_is_killed_end_with_it(eight_gpus: RayRuntime) -> None:
    runtime = Reserved(eight_gpus, [WorkerSpec("Engine", 1, 2)])
    with closing(runtime):
        own, child = runtime.spawn(0).build(WithChild).submit("pids").result(120)
        started = processes.running()[child]
        os.kill(own, signal.SIGKILL)
        assert processes.left_after([started], 30) == []
