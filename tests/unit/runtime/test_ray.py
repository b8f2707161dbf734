"""What Ray is started with."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from sacglam.errors import OutOfMemory
from sacglam.runtime.group import WorkerLost
from sacglam.runtime.ray import RayWorker, _Actor, object_store_bytes


@pytest.mark.parametrize(("free_mib", "store_mib"), [(64, 512), (4000, 1000), (64_000, 2048)])
def test_the_object_store_holds_a_large_models_state_where_there_is_room(
    free_mib: int, store_mib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free_mib << 20))
    assert object_store_bytes() == store_mib << 20


def test_without_shared_memory_the_object_store_is_the_smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_such_folder(path: str) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(shutil, "disk_usage", no_such_folder)
    assert object_store_bytes() == 512 << 20


def out_of_memory() -> None:
    raise MemoryError("no room")


def test_a_worker_without_memory_says_what_to_lower() -> None:
    building, calling = _Actor(), _Actor()
    building.build(out_of_memory, ())
    calling.build(lambda: SimpleNamespace(learn=out_of_memory), ())
    for actor in (building, calling):
        with pytest.raises(OutOfMemory, match=r"no room\n.*algo\.micro_batch_size"):
            actor.call("learn", True)


class RayError(Exception):
    pass


class RayTaskError(RayError):
    cause: Exception | None = None


def raised_by(error: Exception) -> BaseException | None:
    """What a call of a worker ends with if Ray reports this."""
    found: Future[Any] = Future()
    ray: Any = SimpleNamespace(exceptions=SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError))
    ref = SimpleNamespace(future=lambda: found)
    actor: Any = SimpleNamespace(
        where=SimpleNamespace(remote=lambda: SimpleNamespace(future=Future)),
        call=SimpleNamespace(remote=lambda *call: ref),
    )
    answer = RayWorker(ray, actor, own=True).submit("learn")
    found.set_exception(error)
    return answer.exception(0)


def test_what_ray_reports_becomes_our_errors() -> None:
    ours, theirs = RayTaskError("Traceback ..."), RayTaskError("Traceback ...")
    ours.cause, theirs.cause = OutOfMemory("no room"), KeyError("x")
    assert raised_by(ours) is ours.cause
    assert raised_by(theirs) is theirs
    died = RayError(
        "The actor died.\n\tclass_name: _Actor\n\tactor_id: 12\n Killed. Some common causes include: (1) ..."
    )
    lost = raised_by(died)
    assert isinstance(lost, WorkerLost)
    assert str(lost) == "The actor died. Killed."
    assert str(raised_by(RayError())) == "RayError"
    assert raised_by(other := OSError("not Ray's")) is other


@pytest.mark.parametrize(("began", "killed"), [(0.0, True), (-100.0, False)])
def test_a_process_that_has_a_dead_workers_id_is_left_alone(began: float, killed: bool) -> None:
    found: Future[Any] = Future()
    context = SimpleNamespace(get_node_id=lambda: "here")
    ray: Any = SimpleNamespace(
        get_runtime_context=lambda: context, kill=lambda actor, no_restart: None, exceptions=None
    )
    actor: Any = SimpleNamespace(where=SimpleNamespace(remote=lambda: SimpleNamespace(future=lambda: found)))
    worker = RayWorker(ray, actor, own=True)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found.set_result(("here", process.pid, psutil.Process(process.pid).create_time() + began))
        worker.kill()
        process.communicate(b"\n")
    assert (process.returncode == -9) == killed
