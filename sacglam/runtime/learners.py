"""The learner's ranks as one learner."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sacglam.errors import LearnerError, SacglamError
from sacglam.runtime.group import Tick, Worker, WorkerLost, gather
from sacglam.types import Adapter, Batches, LogPolicy, Query, UpdateResult, Window


@dataclass(eq=False)
class LearnerGroup:
    """Makes every call on all ranks, since they meet in collectives; the first rank's result is returned.

    Without engines it is also the scorer: each rank scores its share of the states.

    The methods are those of the learner, and raise `LearnerError` if a rank dies, hangs or fails.
    """

    workers: Sequence[Worker]
    """The ranks, in order."""
    timeout_s: float
    """Limits each call."""
    version: int = 0
    """Updates that have finished: the version of the policy that `log_policy` gives."""
    begun: int = 0
    """Updates that were requested."""
    _pending: "deque[tuple[int, list[Future[Any]]]]" = field(default_factory=deque, init=False)

    @property
    def pending(self) -> int:
        """Intervals whose updates `finish` has not waited for."""
        return len(self._pending)

    def learn(self, batches: Batches, updates: int, probe: Sequence[Query] | None) -> None:
        """Start one interval's `updates`, whose result `finish` returns: see `Learner.learn`."""
        self.begun += updates
        self._pending.append((updates, self._submit("learn", batches, probe)))

    def imitate(self, batches: Sequence[tuple[bool, Sequence[Window]]]) -> None:
        """Start an update for each batch: see `Learner.imitate`."""
        self.begun += len(batches)
        self._pending.append((len(batches), self._submit("imitate", batches)))

    def finish(self) -> UpdateResult:
        """Wait for the oldest pending interval's updates; raises what they raised."""
        updates, calls = self._pending.popleft()
        learned: UpdateResult = self._results(calls)[0]
        self.version += updates
        return learned

    def publish(self, probe: Sequence[Query]) -> Adapter:
        """The current adapter, with the policy at `probe`."""
        return self._call("publish", probe)

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        """log pi over each query's actions, float32, from the learner's current weights."""
        return self._dealt("score", queries)

    def predict(self, name: str, queries: Sequence[Query]) -> list[npt.NDArray[np.float32]]:
        """What the classifier `name` says of each query's actions."""
        return self._dealt("predict", queries, name)

    def fit(self, name: str, *lesson: Any) -> None:
        """Train the classifier `name`: see its `learn`."""
        self._call("fit", name, *lesson)

    def _dealt(self, method: str, queries: Sequence[Query], *args: Any) -> list[npt.NDArray[np.float32]]:
        """The results for all queries, which are divided among the ranks."""
        shares = self._results(self._submit(method, queries, *args, reply_from_all=True))
        return [shares[place % len(shares)][place // len(shares)] for place in range(len(queries))]

    def q_values(self, queries: Sequence[Query]) -> list[npt.NDArray[np.float32]]:
        """min_c Q_c of each query's actions, one array (A,) for each."""
        return self._call("q_values", queries)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Whole tensors and JSON values, the same for any number of ranks."""
        return self._call("state")

    def load_state(self, tensors: dict[str, Any], values: dict[str, Any]) -> None:
        """Restore what `state()` returned, on any number of ranks."""
        self._call("load_state", tensors, values)
        self.version = self.begun = int(values["updates"])

    def exported(self) -> dict[str, bytes]:
        """The agent's files by name: peft adapter and critic."""
        return self._call("exported")

    def seconds(self) -> dict[str, float]:
        """The first rank's seconds by phase."""
        return self._call("seconds")

    def wait_ready(self, tick: Tick) -> None:
        """Wait until every rank has started."""
        self._results(self._submit("seconds"), tick)

    def _call(self, method: str, *args: Any) -> Any:
        return self._results(self._submit(method, *args))[0]

    def _submit(self, method: str, *args: Any, reply_from_all: bool = False) -> "list[Future[Any]]":
        shared = [self.workers[0].shared(arg) for arg in args]
        return [
            worker.submit(method, *shared, reply=reply_from_all or rank == 0)
            for rank, worker in enumerate(self.workers)
        ]

    def _results(self, calls: "Sequence[Future[Any]]", tick: Tick = lambda: None) -> list[Any]:
        try:
            return gather(calls, self.timeout_s, tick)
        except WorkerLost as error:
            raise LearnerError(
                f"a learner rank was lost: {error}. --resume continues from the last checkpoint, or from the "
                "start if there is none yet"
            ) from error
        except SacglamError:
            raise
        except Exception as error:
            if len(self.workers) == 1:
                raise
            traceback = str(error).strip().splitlines() or [type(error).__name__]
            raise LearnerError(f"a learner rank failed: {traceback[-1].strip()}") from error
