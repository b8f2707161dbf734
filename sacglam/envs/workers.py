"""Copies of an environment in worker processes, for worlds whose step takes longer than handing it over.

A worker is this module as a program. It reads one JSON value a line, a call of one of its copies, and answers each with
a line: the values are texts, numbers and lists, so nothing has to be unpickled. It ends when its input does, as it does
when the process that started it dies.
"""

import json
import os
import subprocess
import sys
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from sacglam import errors
from sacglam.envs.base import Split, TextEnv
from sacglam.envs.registry import make
from sacglam.errors import EnvironmentContractError, SacglamError
from sacglam.types import Observation, Step

Answer = Callable[[], Any]
_DROP = "drop"
_UNANSWERED = 1 << 15
"""Bytes of unanswered calls to a worker: half of what a pipe holds, so that to write another never means to wait for a
worker that waits for its answers to be read."""
_POOLS: dict[str, "WorkerPool"] = {}


@dataclass
class _Call:
    """A call that a worker was sent."""

    size: int
    answer: dict[str, Any] | None = None


class WorkerPool:
    """Processes that play copies of one environment."""

    def __init__(self, name: str, options: Mapping[str, Any], workers: int) -> None:
        """`name` and `options` are those of `make`, which each worker calls for each of its copies."""
        self.local = make(name, **options)  # for what needs no episode: goals and their types
        self._name = name
        self._copies = 0
        self.processes = [_start(name, options) for _ in range(workers)]
        self._calls = [deque[_Call]() for _ in self.processes]  # of each worker, those that are not answered

    def make(self) -> "WorkerEnv":
        """A new copy, in the next worker by turns."""
        self._copies += 1
        return WorkerEnv(self, self._copies - 1)

    def ask(self, copy: int, method: str, arguments: Sequence[Any]) -> Answer:
        """Call a method of a copy; calling the result waits for the answer.

        Raises:
            EnvironmentContractError: the worker has died.
        """
        worker, line = copy % len(self.processes), _line(copy, method, *arguments)
        calls = self._calls[worker]
        while calls and sum(each.size for each in calls) + len(line) > _UNANSWERED:
            self._read(worker)
        self._write(worker, line)
        call = _Call(len(line))
        calls.append(call)
        return lambda: self._answer(worker, call)

    def drop(self, copy: int) -> None:
        """Let a worker forget a copy, without an answer: copies are forgotten in the middle of other calls."""
        self._write(copy % len(self.processes), _line(copy, _DROP))

    def _write(self, worker: int, line: str) -> None:
        process = self.processes[worker]
        try:
            process.stdin.write(line)  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
        except (OSError, ValueError):
            raise self._died(process) from None

    def _read(self, worker: int) -> None:
        """Take a worker's next answer."""
        process = self.processes[worker]
        line = process.stdout.readline()  # type: ignore[union-attr]
        if not line.endswith("\n"):
            raise self._died(process)
        self._calls[worker].popleft().answer = json.loads(line)

    def _answer(self, worker: int, call: "_Call") -> Any:
        while call.answer is None:
            self._read(worker)
        if "error" in call.answer:
            raise getattr(errors, call.answer["error"])(call.answer["message"])
        return call.answer["value"]

    def _died(self, process: subprocess.Popen[str]) -> EnvironmentContractError:
        code = process.wait()
        how = f"died of signal {-code}" if code < 0 else f"ended with code {code}"
        return EnvironmentContractError(
            f"a worker process of environment {self._name!r} {how}; if it printed a reason, that is above. Does it run "
            "with env.workers 0? Workers know no environment that a program registers: name package.module:factory"
        )

    def close(self) -> None:
        """End the workers."""
        for process in self.processes:
            process.kill()
            process.communicate()


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


def _line(*values: Any) -> str:
    return json.dumps(values) + "\n"


def _start(name: str, options: Mapping[str, Any]) -> subprocess.Popen[str]:
    """A worker, in a session of its own so that Ctrl-C reaches the training alone."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
    )
    process.stdin.write(_line(name, dict(options)))  # type: ignore[union-attr]
    return process


def _observation(found: Any) -> Observation:
    text, actions = found
    return Observation(text, tuple(actions))


def _step(found: Any) -> Step:
    observation, reward, achieved, terminated, truncated = found
    return Step(_observation(observation), reward, tuple(achieved), terminated, truncated)


def _plain(found: Any) -> Any:
    """An observation, a step or a length as lists and plain values."""
    if isinstance(found, Observation):
        return [found.text, found.actions]
    if isinstance(found, Step):
        ends = bool(found.terminated), bool(found.truncated)
        return [_plain(found.observation), float(found.reward), found.achieved, *ends]
    return found


def _serve() -> None:
    """Answer calls until the input ends."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what an environment prints is no answer
    name, options = json.loads(sys.stdin.readline())
    copies: dict[int, TextEnv] = {}
    for line in sys.stdin:
        copy, method, *arguments = json.loads(line)
        if method == _DROP:
            copies.pop(copy, None)
            continue
        try:
            if copy not in copies:
                copies[copy] = make(name, **options)
            answer = {"value": _plain(getattr(copies[copy], method)(*arguments))}
        except SacglamError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        except Exception:
            answer = {
                "error": "EnvironmentContractError",
                "message": f"environment {name!r}:\n{traceback.format_exc()}",
            }
        output.write(json.dumps(answer) + "\n")
        output.flush()


if __name__ == "__main__":
    _serve()
