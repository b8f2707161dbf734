"""The learner's ranks as one learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sacglam.errors import LearnerError, SacglamError
from sacglam.runtime.group import Pending, Tick, Worker, WorkerLost, gather
from sacglam.types import Batches, Learned, LogPolicy, Published, Query


@dataclass(eq=False)
class LearnerGroup:
    """Makes every call on all ranks, since they meet in collectives; the first rank's result is returned.

    Where there are no engines it is the scorer, too: each rank scores its share of the states.

    The methods are those of the learner, and raise `LearnerError` if a rank dies or hangs.
    """

    workers: Sequence[Worker]
    """The ranks, in order."""
    timeout_s: float
    """Limits each call."""
    updates: int = 0
    """Those that have finished."""
    begun: int = 0
    """Those requested."""

    def learn(self, batches: Batches, updates: int, publish: bool, probe: Sequence[Query]) -> PendingUpdate:
        """Start one interval's `updates`; with `publish`, the result has the adapter and its policy at `probe`."""
        self.begun += updates
        return PendingUpdate(self, self._submit("learn", batches, publish, probe), updates)

    def publish(self, probe: Sequence[Query]) -> Published:
        """The current adapter, and the policy at `probe`."""
        published: Published = self._call("publish", probe)
        return published

    @property
    def version(self) -> int:
        """The version of the policy that `log_policy` gives."""
        return self.updates

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        """log pi over each query's actions, float32, from the weights that learn."""
        pending = self._submit("score", queries, reply_from_all=True)
        policies: dict[int, LogPolicy] = {}
        for rank, share in enumerate(self.results(pending)):
            policies |= zip(range(rank, len(queries), len(self.workers)), share, strict=True)
        return [policies[place] for place in range(len(queries))]

    def q_values(self, queries: Sequence[Query]) -> list[npt.NDArray[np.float32]]:
        """min_c Q_c of each query's actions, one array (A,) for each."""
        values: list[npt.NDArray[np.float32]] = self._call("q_values", queries)
        return values

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Whole tensors and JSON values, the same for any number of ranks."""
        state: tuple[dict[str, Any], dict[str, Any]] = self._call("state")
        return state

    def load_state(self, tensors: dict[str, Any], values: dict[str, Any]) -> None:
        """Restore what `state()` returned, on any number of ranks."""
        self._call("load_state", tensors, values)
        self.updates = self.begun = int(values["updates"])

    def exported(self) -> dict[str, bytes]:
        """The agent's files by name: peft adapter and critic."""
        files: dict[str, bytes] = self._call("exported")
        return files

    def seconds(self) -> dict[str, float]:
        """The first rank's seconds by phase."""
        seconds: dict[str, float] = self._call("seconds")
        return seconds

    def wait_ready(self, timeout_s: float, tick: Tick = lambda: None) -> None:
        """Wait until every rank has started."""
        self.first_result(self._submit("seconds"), timeout_s, tick)

    def check(self) -> None:
        """Raise `LearnerError` if a rank is known to be dead; for times without calls, such as an evaluation."""
        for worker in self.workers:
            try:
                worker.check()
            except WorkerLost as error:
                raise _lost(error) from error

    def _submit(self, method: str, *args: Any, reply_from_all: bool = False) -> list[Pending]:
        shared = [self.workers[0].shared(arg) for arg in args]
        replies = [reply_from_all or rank == 0 for rank in range(len(self.workers))]
        return [w.submit(method, *shared, reply=reply) for w, reply in zip(self.workers, replies, strict=True)]

    def first_result(
        self, pending: Sequence[Pending], timeout_s: float | None = None, tick: Tick = lambda: None
    ) -> Any:
        """The first rank's result, once all ranks have one."""
        return self.results(pending, timeout_s, tick)[0]

    def results(
        self, pending: Sequence[Pending], timeout_s: float | None = None, tick: Tick = lambda: None
    ) -> list[Any]:
        """All ranks' results, in order.

        Raises:
            LearnerError: a rank died, hangs or failed.
        """
        try:
            return gather(pending, timeout_s or self.timeout_s, tick)
        except WorkerLost as error:
            raise _lost(error) from error
        except SacglamError:
            raise
        except Exception as error:
            if len(self.workers) == 1:
                raise
            traceback = str(error).strip().splitlines() or [type(error).__name__]
            raise LearnerError(f"a learner rank failed: {traceback[-1].strip()}") from error

    def _call(self, method: str, *args: Any) -> Any:
        return self.first_result(self._submit(method, *args))


@dataclass(frozen=True)
class PendingUpdate:
    """One interval's updates in progress."""

    group: LearnerGroup
    pending: Sequence[Pending]
    updates: int

    def finish(self) -> Learned:
        """Wait for the result.

        Raises:
            LearnerError: a rank died or hangs.
            DivergenceError: a loss or gradient is not finite.
        """
        learned: Learned = self.group.first_result(self.pending)
        self.group.updates += self.updates
        return learned


def _lost(error: WorkerLost) -> LearnerError:
    return LearnerError(
        f"a learner rank was lost: {error}. --resume continues from the last checkpoint, or from the "
        "start if there is none yet"
    )
