"""Workers in processes that Ray starts. The only file that imports Ray."""

import contextlib
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self

import psutil
from typing_extensions import override

from sacglam import cpu, subprocesses
from sacglam.errors import ConfigError, SacglamError, memory_explained
from sacglam.runtime import reaper
from sacglam.runtime.group import Worker, WorkerLost

# The object store holds batches, adapters and a learner's whole state: some megabytes, or 0.8 GB for a model with
# 7 billion parameters. By default Ray takes a third of the machine's memory.
_LEAST_STORE_BYTES, _MOST_STORE_BYTES = 512 << 20, 2 << 30
# Ray's sockets are in TMPDIR, with paths 68 characters longer, and the path of a socket has at most 107.
_LONGEST_TMPDIR = 39
_CLOCK_S = 10.0  # by which the machine's clock may be adjusted
# Listen on loopback only. Ray has an option for it (`_options`); gloo, NCCL and vLLM read these.
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": "127.0.0.1"}
# If the user's or the cluster's environment sets the second one, every worker would use the first GPU.
_WORKER = {"TOKENIZERS_PARALLELISM": "false", "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "0"}
_RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
# In order: start no idle processes, one per core; our workers have their own environments and could not use them. Keep
# Ray from replacing 127.0.0.1 with the machine's address, on Linux despite the name. Keep the workers' priority: by
# default Ray lowers it, and whatever else runs on the machine slows engines until they miss their time-out. If a
# worker's own process dies, end its children, which hold the GPUs' memory of an engine on several GPUs.
_OWN_RAY = {
    "RAY_prestart_worker_first_driver": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_worker_niceness": "0",
    "RAY_process_group_cleanup_enabled": "1",
}


@dataclass(frozen=True)
class WorkerSpec:
    """The role of a worker's process, which `ps` shows, and its resources."""

    role: str
    threads: int = 1
    gpus: int = 0


class _Actor:
    """What Ray calls in a worker's process."""

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the driver decides
        self._target: Any = None
        self._failure: Exception | None = None
        self._children: list[int] = []

    def build(self, factory: Callable[..., Any], args: Sequence[Any]) -> None:
        """Create the object; if that fails, every later call raises the error."""
        try:
            self._target = memory_explained()(factory)(*args)
        except Exception as error:
            self._failure = error
        self._children = [child.pid for child in psutil.Process().children(recursive=True)]  # vLLM with several GPUs

    def call(self, method: str, reply: bool, *args: Any) -> tuple[Any, float]:
        """Call `method`; return its result (None without `reply`) and its CPU seconds."""
        if self._failure is not None:
            raise self._failure
        started = cpu.seconds(self._children)
        with memory_explained():
            result = getattr(self._target, method)(*args)
        return result if reply else None, cpu.seconds(self._children) - started

    def where(self) -> tuple[str, int, float]:
        """Node id, process id, and when the process began."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid(), psutil.Process().create_time()

    def init_method(self, own: bool) -> str:
        """A rendezvous URL for torch.distributed: a file if all ranks are on this machine, else a free port here."""
        if own:
            # With our process id, by which the reaper finds the folder if we are killed.
            return f"file://{tempfile.mkdtemp(prefix=f'sacglam-ranks-{os.getpid()}-')}/ranks"
        from ray.util import get_node_ip_address

        address: str = get_node_ip_address()  # type: ignore[no-untyped-call,unused-ignore]
        with socket.socket() as found:
            found.bind((address, 0))
            return f"tcp://{address}:{found.getsockname()[1]}"


class RayWorker(Worker):
    """Calls methods of an object in another process."""

    cpu_seconds = 0.0
    """CPU seconds of the calls whose results have arrived."""

    def __init__(self, ray: Any, actor: Any, own: bool) -> None:
        """`actor` is a Ray handle of `_Actor`; `own`: whether we started Ray."""
        self._ray = ray
        self._actor = actor
        self._own = own
        self._where = self._future(actor.where.remote())

    def build(self, factory: Callable[..., Any], *args: Any) -> Self:
        """Create the object `factory(*args)` there; returns at once, and calls wait for it."""
        self._actor.build.remote(factory, args)
        return self

    def init_method(self) -> "Future[str]":
        """The URL at which ranks join torch.distributed, with this worker as rank 0."""
        return self._future(self._actor.init_method.remote(self._own))

    @override
    def shared(self, value: Any) -> Any:
        return self._ray.put(value)

    @override
    def submit(self, method: str, *args: Any, reply: bool = True) -> "Future[Any]":
        def counted(returned: tuple[Any, float]) -> Any:
            result, cpu_seconds = returned
            self.cpu_seconds += cpu_seconds
            return result

        return self._future(self._actor.call.remote(method, reply, *args), counted)

    def _future(self, ref: Any, read: Callable[[Any], Any] = lambda returned: returned) -> "Future[Any]":
        """A call's result as `read` returns it; its errors are those of `Worker.submit`."""
        future: Future[Any] = Future()

        def finish(finished: "Future[Any]") -> None:
            error, errors = finished.exception(), self._ray.exceptions
            if error is None:
                future.set_result(read(finished.result()))
            elif isinstance(error, errors.RayTaskError):
                future.set_exception(error.cause if isinstance(error.cause, SacglamError) else error)
            else:  # a dead process or node, out of memory, ...
                future.set_exception(WorkerLost(_death(error)) if isinstance(error, errors.RayError) else error)

        ref.future().add_done_callback(finish)
        return future

    @override
    def kill(self) -> None:
        with contextlib.suppress(Exception):
            node, pid, began = self._where.result(0)
            process = psutil.Process(pid)
            same = abs(process.create_time() - began) < _CLOCK_S  # otherwise its id has been reused
            if same and node == self._ray.get_runtime_context().get_node_id():  # also ends a process that hangs
                for each in [*process.children(recursive=True), process]:
                    with contextlib.suppress(psutil.NoSuchProcess):  # it may have ended by itself
                        each.kill()
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor, no_restart=True)


class RayRuntime:
    """Reserves resources for workers, starts them and ends them all."""

    def __init__(self, address: str | None, specs: Sequence[WorkerSpec], timeout_s: float = 120.0) -> None:
        """Join the Ray cluster at `address`, or start Ray on this machine, and reserve what `specs` need.

        Raises:
            ConfigError: no cluster answers at `address`, or it lacks the resources.
        """
        self._own = address is None
        self._specs = list(specs)
        self._workers: list[RayWorker] = []
        self._group: Any = None
        self._reaper: reaper.Reaper | None = None
        self._env = {**_WORKER, **(_LOOPBACK if self._own else {})}
        os.environ |= _RAY | (_OWN_RAY if self._own else {})  # read when Ray is imported
        try:
            import ray
        except ImportError as error:
            raise ConfigError(
                f"engines and learner ranks need Ray, which cannot be imported ({error}); see docs/start/install.md, "
                "or leave engines.count and learners.count at 0"
            ) from error
        self._ray: Any = ray
        try:
            self._start(address)
            self._reserve(timeout_s)
        except BaseException:
            self.close()
            raise

    def _start(self, address: str | None) -> None:
        on_terminate = signal.getsignal(signal.SIGTERM)
        if self._own and len(os.environ.get("TMPDIR", "")) > _LONGEST_TMPDIR:
            os.environ.setdefault("RAY_TMPDIR", "/tmp")
        # A cluster outlives its drivers; Ray processes that we start must not outlive us, even if we are killed.
        if self._own:
            self._reaper = reaper.start()
        try:
            self._ray.init(**self._options(address))
        except Exception as error:  # Ray raises many types
            expected = "to start Ray on this machine" if self._own else f"a Ray cluster at RAY_ADDRESS={address!r}"
            raise ConfigError(f"expected {expected}, but {error}") from error
        if self._reaper:
            reaper.started(self._reaper)
        with contextlib.suppress(ValueError):  # outside the main thread, where Ray sets no handler either
            signal.signal(signal.SIGTERM, on_terminate)

    def _options(self, address: str | None) -> dict[str, Any]:
        options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "configure_logging": False}
        if not subprocesses.searches_working_directory():  # Ray's workers would, before anywhere else
            options["job_config"] = self._ray.job_config.JobConfig(_client_job=True)
        if address is not None:
            return {**options, "address": address}
        return {
            **options,
            "address": "local",  # even if Ray already runs here
            "num_cpus": max(os.cpu_count() or 1, sum(spec.threads for spec in self._specs)),
            "num_gpus": sum(spec.gpus for spec in self._specs),  # the plan has counted them
            "include_dashboard": False,
            "object_store_memory": object_store_bytes(),
            "_node_ip_address": "127.0.0.1",
        }

    def _reserve(self, timeout_s: float) -> None:
        from ray.util.placement_group import placement_group

        # A worker's GPUs if it has any, otherwise its threads.
        bundles = [{"GPU": spec.gpus} if spec.gpus else {"CPU": spec.threads} for spec in self._specs]
        self._group = placement_group(bundles, strategy="PACK")
        try:
            self._ray.get(self._group.ready(), timeout=timeout_s)
        except self._ray.exceptions.GetTimeoutError:
            total = {name: n for name, n in self._ray.cluster_resources().items() if name in ("CPU", "GPU")}
            raise ConfigError(
                f"expected the resources {bundles}, but they were not free within {timeout_s:.0f} s; the cluster has "
                f"{total} in total"
            ) from None

    def spawn(self, index: int) -> RayWorker:
        """Start an empty worker process with the resources of `specs[index]`; returns at once."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        spec, place = self._specs[index], PlacementGroupSchedulingStrategy(self._group, index)
        actor: Any = (
            self._ray.remote(type(spec.role, (_Actor,), {}))
            .options(
                num_cpus=0 if spec.gpus else spec.threads,
                num_gpus=spec.gpus,
                max_restarts=0,
                max_concurrency=1,
                runtime_env={"env_vars": {**self._env, "OMP_NUM_THREADS": str(spec.threads)}},
                scheduling_strategy=place,
            )
            .remote()
        )
        worker = RayWorker(self._ray, actor, self._own)
        self._workers.append(worker)
        return worker

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of all workers, in the calls whose results have arrived."""
        return sum(worker.cpu_seconds for worker in self._workers)

    def close(self) -> None:
        """End every worker, and Ray itself if we started it."""
        for worker in self._workers:
            worker.kill()
        if self._group is not None:
            with contextlib.suppress(Exception):  # the cluster may be gone
                from ray.util.placement_group import remove_placement_group

                remove_placement_group(self._group)
        self._ray.shutdown()
        if self._reaper:
            self._reaper.communicate()  # closes its input; it cleans up and exits


def object_store_bytes() -> int:
    """Bytes of shared memory for Ray's arguments and results: a quarter of what is free, within bounds."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:  # not Linux
        return _LEAST_STORE_BYTES
    return min(max(free // 4, _LEAST_STORE_BYTES), _MOST_STORE_BYTES)


def _death(error: BaseException) -> str:
    """Ray's report of a death, without names and advice."""
    names = ("class_name", "actor_id", "namespace", "ip:")
    text = " ".join(line for each in str(error).splitlines() if not (line := each.strip()).startswith(names))
    for advice in (". There are some potential root causes", "Some common causes"):
        text = text.split(advice)[0].strip()
    return text or type(error).__name__
