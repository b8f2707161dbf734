"""The scoring engines as one scorer, which survives the loss of any of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sacglam.config import EnginesConfig
from sacglam.errors import EngineBroken, EngineError
from sacglam.runtime.group import Pending, Tick, Worker, WorkerLost, gather
from sacglam.types import Adapter, LogPolicy, Query, Scores

_MOST_RESTARTS = 10  # over all engines: more point to a cause that a restart does not remove


@dataclass
class _Slot:
    """The place of one engine, whichever process fills it."""

    worker: Worker
    starting: bool = True  # until it has scored a state: the first ones compile kernels


class EngineGroup:
    """Splits states over the engines. One that dies or hangs is replaced, given the newest adapter, and asked again.

    Episodes live in the driver, and a lost engine takes only its answer with it: no transition is lost or duplicated.
    """

    def __init__(
        self,
        start: Callable[[int], Worker],
        config: EnginesConfig,
        note: Callable[[str], None],
        most_restarts: int = _MOST_RESTARTS,
    ) -> None:
        """`start(i)` starts engine i in a new process and returns at once; `note` reports restarts to the user."""
        self._most_restarts = most_restarts
        self._start = start
        self._config = config
        self._note = note
        self._adapter: Adapter | None = None
        self._slots = [_Slot(start(index)) for index in range(config.count)]
        self.restarts = 0

    @property
    def version(self) -> int:
        """The version that all engines score with; 0, the base model, before the first adapter."""
        return self._adapter.version if self._adapter else 0

    def wait_ready(self, tick: Tick = lambda: None) -> None:
        """Wait until every engine has started.

        Raises:
            EngineError: too many were lost.
        """
        self._score([()] * len(self._slots), tick)

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        """log pi over each query's actions, float32.

        Raises:
            EngineError: too many engines were lost.
        """
        size = -(-len(queries) // len(self._slots))
        parts = [queries[i * size : (i + 1) * size] for i in range(len(self._slots))]
        return [policy for scores in self._score(parts) for policy in scores.policies]

    def log_policy_of_each(self, queries: Sequence[Query]) -> list[list[LogPolicy]]:
        """Every engine's policies at the same states."""
        return [scores.policies for scores in self._score([queries] * len(self._slots))]

    def load(self, adapter: Adapter) -> None:
        """Load `adapter` into every engine; returns when all score with it."""
        self._adapter = adapter
        self._call_all("load", [adapter] * len(self._slots))

    def _score(self, parts: Sequence[Sequence[Query]], tick: Tick = lambda: None) -> list[Scores]:
        found: list[Scores] = self._call_all("score", parts, tick)
        others = [scores.version for scores in found if scores.version != self.version]
        if others:
            raise EngineError(f"expected scores of adapter version {self.version}, got versions {others}")
        return found

    def _call_all(self, method: str, arguments: Sequence[object], tick: Tick = lambda: None) -> list[Any]:
        """Call `method` on all engines at once, each with its own argument; again on those that had to be replaced."""
        pending = [slot.worker.submit(method, each) for slot, each in zip(self._slots, arguments, strict=True)]
        return [self._result(i, method, each, pending[i], tick) for i, each in enumerate(arguments)]

    def _result(self, index: int, method: str, argument: object, pending: Pending, tick: Tick) -> Any:
        slot, calls = self._slots[index], [pending]
        while True:
            try:
                timeout_s = self._config.start_timeout_s if slot.starting else self._config.timeout_s
                result = [gather([call], timeout_s, tick)[0] for call in calls][-1]
            except (WorkerLost, EngineBroken) as error:
                self._replace(index, error)
                # The new engine scores with the newest adapter; a call of `load` brings it anyway.
                first = [] if self._adapter is None or method == "load" else [("load", self._adapter)]
                calls = [slot.worker.submit(*call) for call in (*first, (method, argument))]
            else:
                slot.starting = slot.starting and not (method == "score" and argument)
                return result

    def _replace(self, index: int, cause: Exception) -> None:
        slot = self._slots[index]
        if self.restarts >= self._most_restarts:
            raise EngineError(
                f"scoring engine {index} was lost ({cause}), and the {self._most_restarts} restarts of a "
                "run are used up; find out what ends it (memory?), then continue with --resume"
            ) from cause
        self.restarts += 1
        self._note(f"scoring engine {index} was lost ({cause}); restarting it ({self.restarts} so far)")
        slot.worker.kill()
        slot.worker, slot.starting = self._start(index), True
