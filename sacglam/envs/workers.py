"""Copies of an environment in worker processes, for worlds whose step takes longer than handing it over.

A worker runs this module as a program. It receives calls to its copies as JSON values and answers each with another:
they are texts, numbers and lists, so nothing has to be unpickled. Calls and answers have separate pipes, so that an
environment may read from stdin, which is empty, and print to stdout, which is stderr. A worker ends when there are no
more calls, as when the process that started it dies.
"""

import fcntl
import json
import os
import select
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Any

from typing_extensions import override

from sacglam import children, errors
from sacglam.envs.base import Split, TextEnv
from sacglam.envs.registry import make
from sacglam.errors import EnvironmentContractError, SacglamError
from sacglam.types import Observation, Step

Answer = Callable[[], Any]
_DROP = "drop"
_UNANSWERED = 1 << 15
"""Bytes of unanswered calls to a worker: half of what a pipe holds, so that to write another never means to wait for a
worker that waits for its answers to be read."""
_ALIVE_MS = 1000  # between looks at whether a worker that does not answer is alive
_POOLS: dict[str, "WorkerPool"] = {}


@dataclass
class _Call:
    """A call that a worker was sent."""

    size: int
    answer: dict[str, Any] | None = None


class _Worker:
    """A process, and the pipes to and from it."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        """Start it in a new session, so that Ctrl-C reaches only the training."""
        calls, self._calls = map(_not_standard, Pipe(duplex=False))
        self._answers, answers = map(_not_standard, Pipe(duplex=False))
        output = subprocess.DEVNULL if sys.stderr is None else 2  # None: this process's own is closed
        with calls, answers:
            self.process = subprocess.Popen(
                children.python("-m", __name__, str(calls.fileno()), str(answers.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(calls.fileno(), answers.fileno()),
                start_new_session=True,
                env=children.environment(OMP_NUM_THREADS="1"),
            )
        self._answered = select.poll()  # what Connection.poll does, in a tenth of the time
        self._answered.register(self._answers, select.POLLIN)
        self._name = name
        self.unanswered: deque[_Call] = deque()
        self.write(_packed(name, dict(options)))

    def write(self, packed: bytes) -> None:
        """Send a call.

        Raises:
            EnvironmentContractError: the worker has died.
        """
        try:
            self._calls.send_bytes(packed)
        except OSError:
            raise self._died() from None

    def read(self) -> None:
        """Take the next answer.

        Raises:
            EnvironmentContractError: the worker has died, even if a process that it started holds the pipe open.
        """
        while not self._answered.poll(_ALIVE_MS):
            if self.process.poll() is not None and not self._answered.poll(0):
                raise self._died()
        try:
            answer = json.loads(self._answers.recv_bytes())
        except (EOFError, OSError):
            raise self._died() from None
        self.unanswered.popleft().answer = answer

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
        self._calls.close()
        self._answers.close()


class WorkerPool:
    """Processes that play copies of one environment."""

    def __init__(self, name: str, options: Mapping[str, Any], workers: int) -> None:
        """`name` and `options` are those of `make`, which each worker calls for each of its copies."""
        self.local = make(name, **options)  # for what needs no episode: goals and their types
        self._copies = 0
        self._workers = [_Worker(name, options) for _ in range(workers)]

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """The workers' processes."""
        return [worker.process for worker in self._workers]

    def make(self) -> "WorkerEnv":
        """A new copy, in the next worker by turns."""
        self._copies += 1
        return WorkerEnv(self, self._copies - 1)

    def ask(self, copy: int, method: str, arguments: Sequence[Any]) -> Answer:
        """Call a method of a copy; calling the result waits for the answer.

        Raises:
            EnvironmentContractError: the worker has died.
        """
        worker, packed = self._workers[copy % len(self._workers)], _packed(copy, method, *arguments)
        while worker.unanswered and sum(each.size for each in worker.unanswered) + len(packed) > _UNANSWERED:
            worker.read()
        worker.write(packed)
        call = _Call(len(packed))
        worker.unanswered.append(call)
        return lambda: _answer(worker, call)

    def drop(self, copy: int) -> None:
        """Let a worker forget a copy, without an answer: copies are forgotten in the middle of other calls."""
        self._workers[copy % len(self._workers)].write(_packed(copy, _DROP))

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.close()


class WorkerEnv(TextEnv):
    """A copy of an environment that is played by a worker process."""

    def __init__(self, pool: WorkerPool, number: int) -> None:
        """Copy `number` of `pool`, made when it is first called."""
        self._pool = pool
        self._number = number
        weakref.finalize(self, _drop, pool, number).atexit = False

    def ask(self, method: str, *arguments: Any) -> Answer:
        """Call `reset` or `step`, without waiting for the answer, which calling the result gives."""
        answer = self._pool.ask(self._number, method, arguments)
        return lambda: _observation(answer()) if method == "reset" else _step(answer())

    def tasks(self) -> Sequence[str]:
        """See `CheckedEnv.tasks`."""
        return self._pool.local.tasks()

    def notes(self) -> Sequence[str]:
        """See `CheckedEnv.notes`."""
        return self._pool.local.notes()

    @override
    def goals(self, split: Split) -> Sequence[str]:
        return self._pool.local.goals(split)

    @override
    def goal_type(self, goal: str) -> str:
        return self._pool.local.goal_type(goal)

    @override
    def reset(self, goal: str, seed: int) -> Observation:
        observation: Observation = self.ask("reset", goal, seed)()
        return observation

    @override
    def step(self, action: int) -> Step:
        step: Step = self.ask("step", action)()
        return step

    @override
    def optimal_length(self) -> int | None:
        length: int | None = self._pool.ask(self._number, "optimal_length", ())()
        return length


def in_workers(name: str, options: Mapping[str, Any], workers: int) -> WorkerEnv:
    """A copy of an environment in one of this process's workers for it, which are started at the first call."""
    key = json.dumps([name, options, workers], sort_keys=True)
    if key not in _POOLS:
        _POOLS[key] = WorkerPool(name, options, workers)
    return _POOLS[key].make()


def call_all(method: str, calls: Iterable[tuple[TextEnv, Sequence[Any]]]) -> list[Any]:
    """`reset` or `step` of each environment with its arguments; workers compute theirs at the same time."""
    try:
        asked = [
            env.ask(method, *given) if isinstance(env, WorkerEnv) else _later(env, method, given)
            for env, given in calls
        ]
        return [answer() for answer in asked]
    except BaseException:
        close_workers()  # answers that nobody took would be those of the next calls
        raise


def process_ids() -> list[int]:
    """Those of this process's workers."""
    return [process.pid for pool in _POOLS.values() for process in pool.processes]


def close_workers() -> None:
    """End this process's workers."""
    while _POOLS:
        _POOLS.popitem()[1].close()


def _later(env: TextEnv, method: str, given: Sequence[Any]) -> Answer:
    return lambda: getattr(env, method)(*given)


def _drop(pool: WorkerPool, number: int) -> None:
    with suppress(EnvironmentContractError):  # its worker has ended, and the copy with it
        pool.drop(number)


def _answer(worker: _Worker, call: _Call) -> Any:
    while call.answer is None:
        worker.read()
    if "error" in call.answer:
        raise getattr(errors, call.answer["error"], EnvironmentContractError)(call.answer["message"])
    return call.answer["value"]


def _packed(*values: Any) -> bytes:
    return json.dumps(values).encode()


def _observation(found: Any) -> Observation:
    text, actions = found
    return Observation(text, tuple(actions))


def _step(found: Any) -> Step:
    observation, reward, achieved, terminated, truncated = found
    return Step(_observation(observation), reward, tuple(achieved), terminated, truncated)


def _values(found: Any) -> Any:
    """An observation, a step or a length as lists and plain values."""
    if isinstance(found, Observation):
        return [found.text, found.actions]
    if isinstance(found, Step):
        return [_values(found.observation), found.reward, found.achieved, found.terminated, found.truncated]
    return found


def _serve(calls: Connection, answers: Connection) -> None:
    """Answer calls until there are no more."""
    copies: dict[int, TextEnv] = {}
    with suppress(EOFError, BrokenPipeError):  # the process that started it has ended, or no longer needs it
        name, options = json.loads(calls.recv_bytes())
        while True:
            copy, method, *arguments = json.loads(calls.recv_bytes())
            if method == _DROP:
                copies.pop(copy, None)
                continue
            try:
                if copy not in copies:
                    copies[copy] = make(name, **options)
                answer = {"value": _values(getattr(copies[copy], method)(*arguments))}
            except SacglamError as error:
                answer = {"error": type(error).__name__, "message": str(error)}
            answers.send_bytes(json.dumps(answer).encode())


def _not_standard(end: Connection) -> Connection:
    """The end of a pipe, not as 0 to 2: where those were closed, a pipe may get them, and a worker's own replace it."""
    with end:
        number = fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
        return Connection(number, readable=end.readable, writable=end.writable)


def _own(number: str) -> Connection:
    """The pipe with this descriptor, which the processes that this one starts do not inherit."""
    os.set_inheritable(int(number), False)
    return Connection(int(number))


if __name__ == "__main__":
    try:
        _serve(*map(_own, sys.argv[1:]))
    except OSError as error:
        print(
            f"the environment has closed a file descriptor that it did not open: {error}", file=sys.stderr, flush=True
        )
        os._exit(1)  # exit handlers would find their files closed
