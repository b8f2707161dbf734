"""Copies of an environment in worker processes, for environments whose step takes longer than handing it over.

A worker runs this module as a program. Its connection comes as stdin, from where it takes it, so that an environment
may read stdin, which is then empty, and print to stdout, which is stderr. A message is a list of calls as JSON, and the
answer a list of as many results: nothing has to be unpickled, and neither side writes while the other does. A worker
ends with its connection, as when the process that started it dies.
"""

import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import count
from multiprocessing.connection import Connection, Pipe
from typing import Any

from typing_extensions import override

from sacglam import children, errors
from sacglam.envs.base import TextEnv
from sacglam.envs.checks import CheckedEnv
from sacglam.envs.registry import make
from sacglam.errors import EnvironmentContractError, SacglamError
from sacglam.types import Observation, Step

_ALIVE_S = 1.0  # between looks at whether a worker that does not answer is alive
_POOLS: dict[str, "_Pool"] = {}


class _Worker:
    """A process and the connection to it."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        """Start it in a new session, so that Ctrl-C reaches only the training."""
        while (unused := os.open(os.devnull, os.O_RDWR)) <= 2:  # a closed stdin, stdout or stderr
            pass
        os.close(unused)
        self._connection, end = Pipe()
        with end:
            self.process = subprocess.Popen(
                children.python("-m", __name__),
                stdin=end.fileno(),
                stdout=2,
                stderr=2,
                start_new_session=True,
                env=children.environment(OMP_NUM_THREADS="1"),
            )
        self._name = name
        self.dropped: list[int] = []  # copies without references, reported with the next call
        self.send(name, options)

    def send(self, *values: Any) -> None:
        """Send a message; an error if the worker has died."""
        try:
            self._connection.send_bytes(json.dumps(values).encode())
        except OSError:
            raise self._died() from None

    def results(self) -> list[list[Any]]:
        """The results of the calls that were sent: each the name of an error or "", and the value or its message.

        Raises:
            EnvironmentContractError: the worker has died, even if a process that it started holds the connection open.
        """
        try:
            while not self._connection.poll(_ALIVE_S):
                if self.process.poll() is not None and not self._connection.poll():
                    raise EOFError
            results: list[list[Any]] = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise self._died() from None
        return results

    def _died(self) -> EnvironmentContractError:
        code = self.process.wait()
        how = f"died of signal {-code}" if code < 0 else f"ended with code {code}"
        return EnvironmentContractError(
            f"a worker process of environment {self._name!r} {how}; if it printed a reason, that is above. Does it run "
            "with env.workers 0? Workers know no environment that a program registers: name package.module:factory"
        )

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        self._connection.close()


@dataclass
class _Pool:
    """The workers that play copies of one environment, and a copy of this process for what needs no episode."""

    local: CheckedEnv
    workers: list[_Worker]
    numbers: Iterator[int] = field(default_factory=count)


class WorkerEnv(CheckedEnv):
    """A copy of an environment whose episodes a worker process plays; what needs none is answered by `local`."""

    def __init__(self, local: CheckedEnv, worker: _Worker, number: int) -> None:
        """The worker makes its copy `number` when that is first called."""
        super().__init__(local, local.name)
        self.worker, self.number = worker, number
        weakref.finalize(self, worker.dropped.append, number).atexit = False

    @override
    def reset(self, goal: str, seed: int) -> Observation:
        observation: Observation = call_all("reset", [(self, (goal, seed))])[0]
        return observation

    @override
    def step(self, action: int) -> Step:
        step: Step = call_all("step", [(self, (action,))])[0]
        return step

    @override
    def optimal_length(self) -> int | None:
        length: int | None = call_all("optimal_length", [(self, ())])[0]
        return length


def in_workers(name: str, options: Mapping[str, Any], workers: int) -> WorkerEnv:
    """A copy of an environment in one of this process's workers for it, by turns; the first call starts them."""
    key = json.dumps([name, options, workers], sort_keys=True)
    if key not in _POOLS:
        _POOLS[key] = _Pool(make(name, **options), [_Worker(name, options) for _ in range(workers)])
    pool = _POOLS[key]
    number = next(pool.numbers)
    return WorkerEnv(pool.local, pool.workers[number % workers], number)


def call_all(method: str, calls: Iterable[tuple[TextEnv, Sequence[Any]]]) -> list[Any]:
    """A method of each environment with its arguments; workers compute theirs at the same time.

    Raises:
        SacglamError: the first that a call raised, or a worker has died.
    """
    calls, messages = list(calls), dict[_Worker, list[Sequence[Any]]]()
    for env, given in calls:
        if isinstance(env, WorkerEnv):
            messages.setdefault(env.worker, []).append((env.number, method, *given))
    try:
        for worker, asked in messages.items():
            worker.send([worker.dropped.pop() for _ in range(len(worker.dropped))], asked)
        results = {worker: iter(worker.results()) for worker in messages}
    except BaseException:
        close_workers()  # results that nobody took would be those of the next calls
        raise
    return [
        _value(method, *next(results[env.worker])) if isinstance(env, WorkerEnv) else getattr(env, method)(*given)
        for env, given in calls
    ]


def process_ids() -> list[int]:
    """Those of this process's workers."""
    return [worker.process.pid for pool in _POOLS.values() for worker in pool.workers]


def close_workers() -> None:
    """End this process's workers."""
    while _POOLS:
        for worker in _POOLS.popitem()[1].workers:
            worker.close()


def _value(method: str, error: str, found: Any) -> Any:
    """What `method` returned, from its JSON; or raises the error."""
    if error:
        raise getattr(errors, error, EnvironmentContractError)(found)
    if method == "step":
        (text, actions), reward, achieved, *ends = found
        return Step(Observation(text, tuple(actions)), reward, tuple(achieved), *ends)
    return Observation(found[0], tuple(found[1])) if method == "reset" else found


def _fields(found: Observation | Step) -> list[Any]:
    return [getattr(found, each.name) for each in fields(found)]


def _serve(connection: Connection) -> None:
    """Answer calls until there are no more."""
    name, options = json.loads(connection.recv_bytes())
    copies: dict[int, TextEnv] = {}

    def result(copy: int, method: str, *given: Any) -> tuple[str, Any]:
        try:
            if copy not in copies:
                copies[copy] = make(name, **options)
            return "", getattr(copies[copy], method)(*given)
        except SacglamError as error:
            return type(error).__name__, str(error)

    while True:
        dropped, calls = json.loads(connection.recv_bytes())
        for copy in dropped:
            copies.pop(copy, None)
        connection.send_bytes(json.dumps([result(*call) for call in calls], default=_fields).encode())


if __name__ == "__main__":
    taken = Connection(os.dup(0))  # which the processes that this one starts do not inherit
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    try:
        with suppress(EOFError, ConnectionError):  # the process that started it has ended, or no longer needs it
            _serve(taken)
    except OSError as error:
        print(
            f"the environment has closed a file descriptor that it did not open: {error}", file=sys.stderr, flush=True
        )
        os._exit(1)  # exit handlers would find their files closed
