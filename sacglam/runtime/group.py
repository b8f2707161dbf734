"""Objects called in the same way wherever they live: in this process, or in others that Ray places.

The only file that knows Ray.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sacglam.errors import ConfigError, SacglamError
from sacglam.runtime import guardian

_POLL_S = 0.5
_GRACE_S = 3.0
# The driver's store holds batches and adapters, megabytes; Ray's own default is a third of the machine's memory.
_OBJECT_STORE_BYTES = 512 * 1024**2


class WorkerLost(SacglamError):
    """A worker's process is gone, or does not answer."""


class StillRunning(Exception):
    """There is no result within the time given."""


class Pending(Protocol):
    """A result to come."""

    def result(self, timeout_s: float | None = None) -> Any:
        """The result; raises what the call raised, `WorkerLost`, or `StillRunning` after `timeout_s`."""


class Worker(Protocol):
    """Something that runs an object's methods, one after the other in the order they were submitted."""

    def submit(self, method: str, *args: Any) -> Pending:
        """Call `method`."""

    def kill(self) -> None:
        """End the worker at once, whatever it is doing."""


@dataclass(frozen=True)
class Done:
    """A result that is there."""

    value: Any

    def result(self, timeout_s: float | None = None) -> Any:
        """The value."""
        return self.value


class LocalWorker:
    """An object of this process; a call runs when it is submitted."""

    def __init__(self, target: Any) -> None:
        """`target`'s methods are what is called."""
        self._target = target

    def submit(self, method: str, *args: Any) -> Done:
        """Call `method` now."""
        return Done(getattr(self._target, method)(*args))

    def kill(self) -> None:
        """Nothing: the object goes when it is let go."""


def gather(pending: Sequence[Pending], timeout_s: float) -> list[Any]:
    """All results, in order.

    When one worker dies, those that wait for it fail after it or hang; what is raised is the first cause, not the echo.

    Raises:
        WorkerLost: a worker died, or has not answered within `timeout_s`.
    """
    results: dict[int, Any] = {}
    deadline = time.monotonic() + timeout_s
    while len(results) < len(pending):
        for index, each in enumerate(pending):
            if index in results:
                continue
            try:
                results[index] = each.result(_POLL_S)
            except StillRunning:
                if time.monotonic() > deadline:
                    raise WorkerLost(f"worker {index} gave no answer in {timeout_s:.0f} s") from None
            except Exception as error:
                raise _first_cause(pending, error) from error
    return [results[index] for index in range(len(pending))]


def _first_cause(pending: Sequence[Pending], seen: Exception) -> Exception:
    """Of all workers' failures the most telling: a death before an error meant for the user before any other."""
    failures = [seen]
    deadline = time.monotonic() + _GRACE_S
    for each in pending:
        try:
            each.result(max(0.0, deadline - time.monotonic()))
        except StillRunning:
            pass
        except Exception as error:
            failures.append(error)
    return min(failures, key=lambda e: 0 if isinstance(e, WorkerLost) else 1 if isinstance(e, SacglamError) else 2)


@dataclass(frozen=True)
class Needs:
    """What one worker's process takes: CPU threads, GPUs, and environment variables beside; `ps` shows its role."""

    role: str
    threads: int = 1
    gpus: int = 0
    env: Mapping[str, str] | None = None

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
        import ray

        self._ray: Any = ray
        self._places = list(places)
        self._workers: list[RayWorker] = []
        options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "configure_logging": False}
        if address is None:
            threads = sum(place.threads for place in places)
            options |= {
                "num_cpus": max(os.cpu_count() or 1, threads),
                "include_dashboard": False,
                "object_store_memory": _OBJECT_STORE_BYTES,
                "_node_ip_address": "127.0.0.1",
            }
        else:
            options["address"] = address
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError(f"expected a Ray cluster at runtime.address={address!r}, but {error}") from error
        # Workers in a cluster are its own affair; a Ray of ours must not outlive us.
        self._guardian = guardian.start() if address is None and sys.platform == "linux" else None
        self._reserve(timeout_s)

    def _reserve(self, timeout_s: float) -> None:
        from ray.util.placement_group import placement_group

        self._group = placement_group([place.bundle() for place in self._places], strategy="PACK")
        try:
            self._ray.get(self._group.ready(), timeout=timeout_s)
        except self._ray.exceptions.GetTimeoutError:
            have = {name: n for name, n in self._ray.cluster_resources().items() if name in ("CPU", "GPU")}
            self.close()
            raise ConfigError(
                f"expected places for {[place.bundle() for place in self._places]}, but in {timeout_s:.0f} s there was "
                f"no room beside what runs there already; the cluster has {have} in all"
            ) from None

    def spawn(self, place: int) -> RayWorker:
        """Start an empty worker process at `places[place]`; returns at once."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        needs = self._places[place]
        env = {"OMP_NUM_THREADS": str(needs.threads), "TOKENIZERS_PARALLELISM": "false", **(needs.env or {})}
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
        worker = RayWorker(self._ray, actor)
        self._workers.append(worker)
        return worker

    def close(self) -> None:
        """End every worker, and Ray itself where it is ours."""
        for worker in self._workers:
            worker.kill()
        self._workers.clear()
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

    def call(self, method: str, args: Sequence[Any]) -> Any:
        if self._failure is not None:
            raise self._failure
        return getattr(self._target, method)(*args)

    def where(self) -> tuple[str, int]:
        """The node's id and the process's."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def meeting_point(self) -> tuple[str, int]:
        """An address and a free port on this node, for ranks to meet at."""
        from ray.util import get_node_ip_address

        address: str = get_node_ip_address()  # type: ignore[no-untyped-call,unused-ignore]
        with socket.socket() as found:
            found.bind((address, 0))
            return address, found.getsockname()[1]


class RayWorker:
    """An object in another process."""

    def __init__(self, ray: Any, actor: Any) -> None:
        """`actor` is a Ray handle of `_Host`."""
        self._ray = ray
        self._actor = actor
        self._where = actor.where.remote()

    def build(self, factory: Callable[..., Any], *args: Any) -> RayWorker:
        """Make the object `factory(*args)` there; returns at once, calls wait for it."""
        self._actor.build.remote(factory, args)
        return self

    def meeting_point(self, timeout_s: float) -> tuple[str, int]:
        """An address and a free port on the worker's node."""
        address, port = RayPending(self._ray, self._actor.meeting_point.remote()).result(timeout_s)
        return str(address), int(port)

    def submit(self, method: str, *args: Any) -> RayPending:
        """Call `method` when the worker has done what came before."""
        return RayPending(self._ray, self._actor.call.remote(method, args))

    def pid(self, timeout_s: float | None = None) -> int:
        """The process's id, once it has started."""
        return int(RayPending(self._ray, self._where).result(timeout_s)[1])

    def kill(self) -> None:
        """End the process. One of this machine that does not react, e.g. a stopped one, is killed by the system."""
        with contextlib.suppress(Exception):
            node, pid = self._ray.get(self._where, timeout=0)
            if node == self._ray.get_runtime_context().get_node_id():
                os.kill(pid, signal.SIGKILL)
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
        except (errors.RayActorError, errors.WorkerCrashedError, errors.NodeDiedError) as error:
            raise WorkerLost(_death(error)) from None


def _death(error: Exception) -> str:
    """Ray's account of a death, without names and advice."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith(("class_name", "actor_id", "namespace", "ip:"))]
    return " ".join(told).split(". There are some potential root causes")[0] or type(error).__name__
