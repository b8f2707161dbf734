"""The scoring engines as one scorer, which survives the loss of any of them."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from sacglam.errors import EngineBroken, EngineError
from sacglam.runtime.group import Tick, Worker, WorkerLost, gather
from sacglam.types import Adapter, LogPolicy, Query

_START_S = 600.0  # that an engine may take to start, even where the time-out of later calls is shorter
_MOST_RESTARTS = 10  # over all engines: more point to a cause that a restart does not remove


@dataclass(eq=False)
class EngineGroup:
    """Splits states over the engines. One that dies or hangs is replaced, given the newest adapter, and asked again.

    Episodes live in the driver, so a lost engine loses only its answer: no transition is lost or duplicated. Calls
    raise `EngineError` once too many engines were lost.
    """

    start: Callable[[int], Worker]
    """Starts engine i in a new process and returns at once."""
    count: int
    timeout_s: float
    """An engine that does not answer within this time (while it starts: at least ten minutes) is lost."""
    note: Callable[[str], None]
    """Reports restarts to the user."""
    restarts: int = field(default=0, init=False)
    _adapter: Adapter | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._workers = [self.start(index) for index in range(self.count)]
        self._start_s = max(self.timeout_s, _START_S)

    @property
    def version(self) -> int:
        """The version that all engines score with; 0, the base model, before the first adapter."""
        return self._adapter.version if self._adapter else 0

    def wait_ready(self, tick: Tick = lambda: None) -> None:
        """Wait until every engine has started."""
        self._call_all("score", [()] * len(self._workers), self._start_s, tick)

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        """log pi over each query's actions, float32."""
        size = -(-len(queries) // len(self._workers))
        parts = [queries[i * size : (i + 1) * size] for i in range(len(self._workers))]
        return [policy for policies in self._score(parts) for policy in policies]

    def log_policy_of_each(self, queries: Sequence[Query]) -> list[list[LogPolicy]]:
        """Every engine's policies at the same states."""
        return self._score([queries] * len(self._workers))

    def load(self, adapter: Adapter) -> None:
        """Load `adapter` into every engine; returns when all score with it."""
        self._adapter = adapter
        self._call_all("load", [adapter] * len(self._workers), self.timeout_s)

    def _score(self, parts: Sequence[Sequence[Query]]) -> list[list[LogPolicy]]:
        answers = self._call_all("score", parts, self.timeout_s)
        others = [version for version, _ in answers if version != self.version]
        if others:
            raise EngineError(f"expected scores of adapter version {self.version}, got versions {others}")
        return [policies for _, policies in answers]

    def _call_all(
        self, method: str, arguments: Sequence[object], timeout_s: float, tick: Tick = lambda: None
    ) -> list[Any]:
        """Call `method` on all engines at once, each with its own argument; again on those that had to be replaced."""
        calls = [worker.submit(method, each) for worker, each in zip(self._workers, arguments, strict=True)]
        return [self._result(i, [calls[i]], (method, each), timeout_s, tick) for i, each in enumerate(arguments)]

    def _result(
        self, index: int, calls: "list[Future[Any]]", call: tuple[str, object], timeout_s: float, tick: Tick
    ) -> Any:
        """The last result of `calls`; of `call` again, if the engine had to be replaced."""
        while True:
            try:
                return gather(calls, timeout_s, tick)[-1]
            except (WorkerLost, EngineBroken) as error:
                self._replace(index, error)
            timeout_s = self._start_s
            # The new engine needs the newest adapter first, unless the call is the `load` that brings it.
            first = [] if self._adapter is None or call[0] == "load" else [("load", self._adapter)]
            calls = [self._workers[index].submit(*each) for each in (*first, call)]

    def _replace(self, index: int, cause: Exception) -> None:
        if self.restarts >= _MOST_RESTARTS:
            raise EngineError(
                f"scoring engine {index} was lost ({cause}), and the {_MOST_RESTARTS} restarts of a "
                "run are used up; find out why it ends (out of memory?), then continue with --resume"
            ) from cause
        self.restarts += 1
        self.note(f"scoring engine {index} was lost ({cause}); restarting it ({self.restarts} so far)")
        self._workers[index].kill()
        self._workers[index] = self.start(index)
