"""The scoring engines as one scorer, which outlives any of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sacglam.errors import EngineBroken, EngineError
from sacglam.runtime.group import Pending, StillRunning, Worker, WorkerLost
from sacglam.scoring.base import Engine, LogPolicy
from sacglam.types import Adapter, Query

_TICK_S = 0.5


@dataclass(frozen=True)
class Scores:
    """Policies, and the version of the adapter they were made with."""

    version: int
    policies: list[LogPolicy]


class EngineHost:
    """One engine, as its worker is asked."""

    def __init__(self, engine: Engine) -> None:
        """Answers with `engine`."""
        self._engine = engine

    def score(self, queries: Sequence[Query]) -> Scores:
        """Policies at `queries`, with the version they were made with."""
        policies = self._engine.log_policy(queries) if queries else []
        return Scores(self._engine.version, policies)

    def load(self, adapter: Adapter) -> None:
        """Score with `adapter` from now on."""
        self._engine.load(adapter)


class EngineGroup:
    """Splits the states over the engines; one that dies or hangs is replaced, given the newest adapter, asked again.

    Episodes live in the driver, and a lost engine takes nothing but its answer with it: no transition can be lost or
    doubled.
    """

    def __init__(
        self,
        start: Callable[[int], Worker],
        count: int,
        *,
        timeout_s: float,
        start_timeout_s: float,
        max_restarts: int,
        note: Callable[[str], None],
    ) -> None:
        """`start(i)` begins engine i in a new process and returns at once; `note` tells the user of a restart."""
        self._start = start
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._max_restarts = max_restarts
        self._note = note
        self._adapter: Adapter | None = None
        self.restarts = 0
        self._workers = [start(index) for index in range(count)]
        self._starting = [True] * count  # starting takes longer than answering
        self._served = [False] * count
        self._tick: Callable[[], None] = lambda: None

    @property
    def version(self) -> int:
        """The version all engines score with; 0, the base model, before the first adapter."""
        return self._adapter.version if self._adapter else 0

    def wait_ready(self, tick: Callable[[], None] = lambda: None) -> None:
        """Wait until every engine has started, calling `tick` now and then, which may raise to give up.

        Raises:
            EngineError: they cannot.
        """
        self._tick = tick
        self._ask_all("score", [()] * len(self._workers))
        self._tick = lambda: None

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        """log pi over each query's actions, float32.

        Raises:
            EngineError: engines were lost more often than `max_restarts`.
        """
        size = -(-len(queries) // len(self._workers))
        parts = [queries[i * size : (i + 1) * size] for i in range(len(self._workers))]
        return [policy for scores in self._ask_all("score", parts) for policy in scores.policies]

    def log_policy_of_each(self, queries: Sequence[Query]) -> list[list[LogPolicy]]:
        """What every engine says of the same states."""
        return [scores.policies for scores in self._ask_all("score", [queries] * len(self._workers))]

    def load(self, adapter: Adapter) -> None:
        """Give every engine `adapter`; when this returns, all score with it."""
        self._adapter = adapter
        self._each("load", [adapter] * len(self._workers))

    def _ask_all(self, method: str, parts: Sequence[Sequence[Query]]) -> list[Scores]:
        found: list[Scores] = self._each(method, parts)
        odd = [scores.version for scores in found if scores.version != self.version]
        if odd:
            raise EngineError(f"expected scores of adapter version {self.version}, got versions {odd}")
        return found

    def _each(self, method: str, arguments: Sequence[object]) -> list[Any]:
        """`method` on every engine at once, each with its own argument; asked again where an engine was lost."""
        pending = [w.submit(method, a) for w, a in zip(self._workers, arguments, strict=True)]
        return [self._answer(index, method, a, pending[index]) for index, a in enumerate(arguments)]

    def _answer(self, index: int, method: str, argument: object, pending: Pending) -> Any:
        while True:
            try:
                answer = self._wait(index, pending)
            except (WorkerLost, EngineBroken) as error:
                pending = self._ask_anew(index, method, argument, error)
            else:
                self._starting[index] = False
                self._served[index] = True
                return answer

    def _wait(self, index: int, pending: Pending) -> Any:
        limit = self._start_timeout_s if self._starting[index] else self._timeout_s
        deadline = time.monotonic() + limit
        while True:
            try:
                return pending.result(min(_TICK_S, limit))
            except StillRunning:
                self._tick()
                if time.monotonic() > deadline:
                    raise WorkerLost(f"no answer in {limit:.0f} s") from None

    def _ask_anew(self, index: int, method: str, argument: object, cause: Exception) -> Pending:
        """Replace an engine, give the new one the newest adapter, and ask it what the old one was asked."""
        if not self._served[index]:
            raise EngineError(f"scoring engine {index} cannot start: {cause}") from cause
        if self.restarts >= self._max_restarts:
            raise EngineError(
                f"scoring engine {index} was lost ({cause}), and the {self._max_restarts} restarts of "
                "engines.max_restarts are used up; see what ends it (memory?), then go on with --resume"
            ) from cause
        self.restarts += 1
        self._note(f"scoring engine {index} was lost ({cause}); starting it anew ({self.restarts} so far)")
        self._workers[index].kill()
        self._workers[index] = worker = self._start(index)
        self._starting[index] = True
        if self._adapter is None or method == "load":
            return worker.submit(method, argument)
        return _After(worker.submit("load", self._adapter), worker.submit(method, argument))


@dataclass(frozen=True)
class _After:
    """A result that counts only if what was asked before it went well."""

    before: Pending
    pending: Pending

    def result(self, timeout_s: float | None = None) -> Any:
        self.before.result(timeout_s)
        return self.pending.result(timeout_s)
