"""Workers in processes of their own, which Ray places. The only file that knows Ray."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sacglam.errors import ConfigError, SacglamError
from sacglam.runtime import guardian
from sacglam.runtime.group import StillRunning, WorkerLost

# The driver's store holds batches and adapters, megabytes; Ray's own default is a third of the machine's memory.
_OBJECT_STORE_BYTES = 512 * 1024**2
# On loopback all that listens is out of reach from outside; Ray, NCCL, gloo and vLLM each want to be told.
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": "127.0.0.1"}


@dataclass(frozen=True)
class Needs:
    """What one worker's process takes: CPU threads and GPUs; `ps` shows its role."""

    role: str
    threads: int = 1
    gpus: int = 0

    def bundle(self) -> dict[str, float]:
        """As Ray counts it: the GPUs if there are any, else the threads."""
        return {"GPU": float(self.gpus)} if self.gpus else {"CPU": float(self.threads)}


class RayRuntime:
    """A Ray of our own on this machine, or a cluster joined; starts workers in reserved places and ends them all."""

    def __init__(self, address: str | None, places: Sequence[Needs], timeout_s: float = 120.0) -> None:
        """Join or start Ray and reserve one place for each of `places`.

        Raises:
            ConfigError: no cluster answers at `address`, or it has not the resources.
        """
        self._own = address is None
        self._places = list(places)
        self._workers: list[RayWorker] = []
        self._group: Any = None
        self._guardian: guardian.Guardian | None = None
        self._env = {"TOKENIZERS_PARALLELISM": "false", **(_LOOPBACK if self._own else {})}
        os.environ |= _ray_environment(self._own)  # read when Ray is imported
        try:
            import ray
        except ImportError as error:
            raise ConfigError(
                f"engines and learner ranks need Ray, which cannot be imported ({error}); see docs/install.md, or "
                "leave engines.count and learners.count at 0"
            ) from error
        self._ray: Any = ray
        before = guardian.children(os.getpid())
        try:
            ray.init(**self._options(address))
        except (ConnectionError, RuntimeError, ValueError) as error:
            wanted = "to start a Ray on this machine" if self._own else f"a Ray cluster at runtime.address={address!r}"
            raise ConfigError(f"expected {wanted}, but {error}") from error
        try:
            # A cluster looks after its own processes; a Ray of ours must not outlive us.
            if self._own and sys.platform == "linux":
                self._guardian = guardian.start(guardian.children(os.getpid()) - before)
            self._reserve(timeout_s)
        except BaseException:
            self.close()
            raise

    def _options(self, address: str | None) -> dict[str, Any]:
        options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "configure_logging": False}
        if address is not None:
            return {**options, "address": address}
        return {
            **options,
            "address": "local",  # whatever other Ray this machine or RAY_ADDRESS may know of
            "num_cpus": max(os.cpu_count() or 1, sum(place.threads for place in self._places)),
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
            "_node_ip_address": "127.0.0.1",
        }

    def _reserve(self, timeout_s: float) -> None:
        from ray.util.placement_group import placement_group

        self._group = placement_group([place.bundle() for place in self._places], strategy="PACK")
        try:
            self._ray.get(self._group.ready(), timeout=timeout_s)
        except self._ray.exceptions.GetTimeoutError:
            have = {name: n for name, n in self._ray.cluster_resources().items() if name in ("CPU", "GPU")}
            raise ConfigError(
                f"expected places for {[place.bundle() for place in self._places]}, but in {timeout_s:.0f} s there was "
                f"no room beside what runs there already; the cluster has {have} in all"
            ) from None

    def spawn(self, place: int) -> RayWorker:
        """Start an empty worker process at `places[place]`; returns at once."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        needs = self._places[place]
        env = {**self._env, "OMP_NUM_THREADS": str(needs.threads)}
        actor: Any = (
            self._ray.remote(type(needs.role, (_Host,), {}))
            .options(
                num_cpus=0 if needs.gpus else needs.threads,
                num_gpus=needs.gpus,
                max_restarts=0,
                max_concurrency=1,
                runtime_env={"env_vars": env},
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=self._group, placement_group_bundle_index=place
                ),
            )
            .remote()
        )
        worker = RayWorker(self._ray, actor, self._own)
        self._workers.append(worker)
        return worker

    def close(self) -> None:
        """End every worker, and Ray itself where it is ours."""
        for worker in self._workers:
            worker.kill()
        self._workers.clear()
        if self._group is not None:
            with contextlib.suppress(Exception):  # a cluster that is gone has nothing left to give back
                from ray.util.placement_group import remove_placement_group

                remove_placement_group(self._group)
        self._ray.shutdown()
        if self._guardian:
            self._guardian.communicate()  # closes its input: it sees to the rest, and ends


class _Host:
    """What a worker's process runs."""

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the driver decides
        self._target: Any = None
        self._failure: Exception | None = None

    def build(self, factory: Callable[..., Any], args: Sequence[Any]) -> None:
        """Make the object; if that fails, every later call says why."""
        try:
            self._target = factory(*args)
        except Exception as error:
            self._failure = error

    def call(self, method: str, args: Sequence[Any], reply: bool) -> Any:
        if self._failure is not None:
            raise self._failure
        result = getattr(self._target, method)(*args)
        return result if reply else None

    def where(self) -> tuple[str, int]:
        """The node's id and the process's."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def meeting_point(self, own: bool) -> str:
        """Where ranks meet, as torch.distributed wants it: a file on a machine of our own, else a free port here."""
        if own:
            return f"file://{tempfile.mkdtemp(prefix='sacglam-meeting-')}/ranks"
        from ray.util import get_node_ip_address

        address: str = get_node_ip_address()  # type: ignore[no-untyped-call,unused-ignore]
        with socket.socket() as found:
            found.bind((address, 0))
            return f"tcp://{address}:{found.getsockname()[1]}"


class RayWorker:
    """An object in another process."""

    def __init__(self, ray: Any, actor: Any, own: bool) -> None:
        """`actor` is a Ray handle of `_Host`, in a Ray of our own or a cluster's."""
        self._ray = ray
        self._actor = actor
        self._own = own
        self._killed = False
        self._sign_of_life: RayPending | None = None
        self._where = actor.where.remote()

    def build(self, factory: Callable[..., Any], *args: Any) -> RayWorker:
        """Make the object `factory(*args)` there; returns at once, calls wait for it."""
        self._actor.build.remote(factory, args)
        return self

    def meeting_point(self, timeout_s: float) -> str:
        """Where ranks can meet, as a URL for torch.distributed."""
        return str(RayPending(self._ray, self._actor.meeting_point.remote(self._own)).result(timeout_s))

    def submit(self, method: str, *args: Any, reply: bool = True) -> RayPending:
        """Call `method` when the worker has done what came before."""
        return RayPending(self._ray, self._actor.call.remote(method, args, reply))

    def check(self) -> None:
        """Raise `WorkerLost` if the process is known to be dead; one question at a time waits behind its work."""
        if self._sign_of_life is None:
            self._sign_of_life = RayPending(self._ray, self._actor.where.remote())
        with contextlib.suppress(StillRunning):
            self._sign_of_life.result(0)
            self._sign_of_life = None

    def kill(self) -> None:
        """End the process and those below it. One of this machine that does not react is killed by the system."""
        if self._killed:  # its number may be another process's by now
            return
        self._killed = True
        with contextlib.suppress(Exception):
            node, pid = self._ray.get(self._where, timeout=0)
            if node == self._ray.get_runtime_context().get_node_id():
                for each in [pid, *guardian.descendants(pid)]:
                    os.kill(each, signal.SIGKILL)
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor, no_restart=True)


class RayPending:
    """A result to come from another process."""

    def __init__(self, ray: Any, ref: Any) -> None:
        """`ref` is Ray's reference."""
        self._ray = ray
        self._ref = ref

    def result(self, timeout_s: float | None = None) -> Any:
        """The result, as `Pending` says."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(self._ref, timeout=timeout_s)
        except errors.GetTimeoutError:
            raise StillRunning from None
        except errors.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, SacglamError) else error) from None
        except errors.RayError as error:  # a dead process or node, out of memory, ...
            raise WorkerLost(_death(error)) from None


def _death(error: Exception) -> str:
    """Ray's account of a death, without names and advice."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith(("class_name", "actor_id", "namespace", "ip:"))]
    text = " ".join(told)
    for advice in (". There are some potential root causes", "Some common causes"):
        text = text.split(advice)[0].strip()
    return text or type(error).__name__


def _ray_environment(own: bool) -> dict[str, str]:
    """Settings that Ray reads from the environment. On Linux its name of the last one hides what it does: with 0 the
    address 127.0.0.1 stays what it is, and is not replaced by the machine's. The one before it spares an idle process
    for each core, which none of our workers could use, since theirs have an environment of their own."""
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    ours = {"RAY_prestart_worker_first_driver": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    return settings | ours if own else settings
