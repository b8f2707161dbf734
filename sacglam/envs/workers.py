"""Copies of an environment in worker processes, for environments whose steps cost more than sending them there.

A worker runs this module as a program. It takes its connection from stdin, which is then empty, and stdout becomes
stderr, so that an environment may read and print. A message is a list of calls, and the answer a list of as many
results, so neither side writes while the other does. A worker ends when its connection closes, for example because
the process that started it died.
"""

import atexit
import json
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count, cycle
from multiprocessing.connection import Connection, Pipe
from typing import Any

from typing_extensions import override

from sacglam import errors, subprocesses
from sacglam.envs.base import TextEnv
from sacglam.envs.checks import CheckedEnv
from sacglam.envs.registry import make
from sacglam.errors import EnvironmentContractError, SacglamError
from sacglam.types import Observation, Step

_ALIVE_S = 1.0  # between checks that an unresponsive worker is alive
_END_S = 2.0  # until workers that do not end are killed
_workers: list["_Worker"] = []
_pools: dict[str, tuple[CheckedEnv, "cycle[_Worker]"]] = {}
"""By environment and number of workers: a copy in this process, for what needs no episode, and the workers in turn."""


class _Worker:
    """A process and the connection to it."""

    def __init__(self, name: str, *settings: Any) -> None:
        """Start it in a new session, so that Ctrl-C reaches only the training."""
        while (unused := os.open(os.devnull, os.O_RDWR)) <= 2:  # a closed stdin, stdout or stderr
            pass
        os.close(unused)
        self.connection, end = Pipe()
        with end:
            self.process = subprocess.Popen(
                subprocesses.python("-m", __name__),
                stdin=end.fileno(),
                stdout=2,
                stderr=2,
                start_new_session=True,
                env=subprocesses.environment(OMP_NUM_THREADS="1"),
            )
        self._name = name
        self.numbers = count()  # of its copies
        self.dropped: list[int] = []  # copies without references, reported with the next call
        self.send(name, *settings)
        _workers.append(self)

    def send(self, *values: Any) -> None:
        """Send a message; an error if the worker has died."""
        try:
            self.connection.send(values)
        except OSError:
            raise self._died() from None

    def results(self) -> list[tuple[str, Any]]:
        """The results of the calls that were sent, each a pair: ("", value), or the name of an error and its message.

        An `EnvironmentContractError` if the worker died, even if a process that it started holds the connection open.
        """
        try:
            while not self.connection.poll(_ALIVE_S):
                if self.process.poll() is not None and not self.connection.poll():
                    raise EOFError
            return self.connection.recv()
        except (EOFError, OSError):
            raise self._died() from None

    def _died(self) -> EnvironmentContractError:
        code = self.process.wait()
        how = f"died of signal {-code}" if code < 0 else f"ended with code {code}"
        return EnvironmentContractError(
            f"a worker process of environment {self._name!r} {how}; if it printed a reason, that is above. Does it run "
            "with env.workers 0? Workers cannot see environments registered at run time; name package.module:factory"
        )


class WorkerEnv(CheckedEnv):
    """A copy of an environment whose episodes a worker process plays; `local` answers what needs no episode."""

    def __init__(self, local: CheckedEnv, worker: _Worker) -> None:
        """The worker makes its copy at the first call."""
        super().__init__(local, local.name)
        self.rewarding(local.own_rewards)
        self._close.detach()  # other copies share `local`
        self.worker, self.number = worker, next(worker.numbers)
        weakref.finalize(self, worker.dropped.append, self.number).atexit = False

    def _ask(self, method: str, *given: Any) -> Any:
        return call_all(method, [(self, given)])[0]

    @override
    def reset(self, goal: str, seed: int) -> Observation:
        return self._ask("reset", goal, seed)

    @override
    def step(self, action: int) -> Step:
        return self._ask("step", action)

    @override
    def optimal_length(self) -> int | None:
        return self._ask("optimal_length")

    @override
    def expert(self) -> int | None:
        return self._ask("expert")

    @override
    def so_far(self) -> tuple[str, int, Sequence[int]]:
        return self._ask("so_far")


def in_workers(name: str, options: Mapping[str, Any], workers: int, own_rewards: bool = False) -> WorkerEnv:
    """A copy of an environment in the next of this process's workers for it; the first call starts them."""
    key = json.dumps([name, options, own_rewards, workers], sort_keys=True)
    if key not in _pools:
        local = make(name, **options).rewarding(own_rewards)
        _pools[key] = local, cycle([_Worker(name, options, own_rewards) for _ in range(workers)])
    local, turns = _pools[key]
    return WorkerEnv(local, next(turns))


def call_all(method: str, calls: Iterable[tuple[TextEnv, Sequence[Any]]]) -> list[Any]:
    """Call a method of each environment with its arguments; workers and servers compute theirs at the same time.

    Raises:
        SacglamError: the first that a call raised, or a worker has died.
    """
    calls, messages = list(calls), dict[_Worker, list[Sequence[Any]]]()
    for env, given in calls:
        if isinstance(env, WorkerEnv):
            messages.setdefault(env.worker, []).append((env.number, method, *given))
        elif isinstance(env, CheckedEnv):
            env.begin_call(method, *given)
    try:
        for worker, asked in messages.items():
            worker.send([worker.dropped.pop() for _ in range(len(worker.dropped))], asked)
        results = {worker: iter(worker.results()) for worker in messages}
    except BaseException:
        close_workers()  # unread results would be taken for those of the next calls
        raise
    return [
        _value(*next(results[env.worker])) if isinstance(env, WorkerEnv) else getattr(env, method)(*given)
        for env, given in calls
    ]


def _value(error: str, value: Any) -> Any:
    if error:
        raise getattr(errors, error, EnvironmentContractError)(value)
    return value


def process_ids() -> list[int]:
    """The process ids of this process's workers."""
    return [worker.process.pid for worker in _workers]


def close_workers() -> None:
    """End this process's workers; those that take too long are killed."""
    _pools.clear()
    for worker in _workers:
        worker.connection.close()  # its process closes its environments and ends, once it has answered
    deadline = time.monotonic() + _END_S
    while _workers:
        process = _workers.pop().process
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.wait()


def _serve(connection: Connection) -> None:
    """Answer calls until there are no more."""
    name, options, own_rewards = connection.recv()
    copies: dict[int, TextEnv] = {}

    def result(copy: int, method: str, *given: Any) -> tuple[str, Any]:
        try:
            if copy not in copies:
                copies[copy] = make(name, **options).rewarding(own_rewards)
            return "", getattr(copies[copy], method)(*given)
        except SacglamError as error:
            return type(error).__name__, str(error)

    while True:
        dropped, calls = connection.recv()
        for copy in dropped:
            copies.pop(copy, None)
        connection.send([result(*call) for call in calls])


if __name__ == "__main__":
    own = Connection(os.dup(0))  # not inherited by the processes that this one starts
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    try:
        with suppress(EOFError, ConnectionError):  # the process that started it has ended, or no longer needs it
            _serve(own)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(0)  # threads of the environment would keep the process
    except OSError as error:
        print(
            f"the environment has closed a file descriptor that it did not open: {error}", file=sys.stderr, flush=True
        )
        os._exit(1)  # exit handlers would find their files closed
