"""The learner's ranks as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sacglam.errors import LearnerError, SacglamError
from sacglam.runtime.group import Pending, Worker, WorkerLost, gather
from sacglam.scoring.base import Learned, Published
from sacglam.types import Batches, Query


class LearnerGroup:
    """Calls every rank alike, since ranks meet in collectives; what counts is the first one's answer."""

    def __init__(self, workers: Sequence[Worker], timeout_s: float) -> None:
        """`workers` hold the ranks, in order; `timeout_s` bounds one call.

        `updates` counts those that are done, `begun` those asked for.
        """
        self._workers = list(workers)
        self._timeout_s = timeout_s
        self.updates = 0
        self.begun = 0

    def learn(self, batches: Batches, updates: int, publish: bool, probe: Sequence[Query]) -> PendingUpdate:
        """Begin one interval's `updates`; `batches`, `publish` and `probe` as in `Learner.learn`."""
        self.begun += updates
        return PendingUpdate(self, self._submit("learn", batches, publish, probe), updates)

    def publish(self, probe: Sequence[Query]) -> Published:
        """The adapter of now, and the policy at the states of `probe`."""
        published: Published = self._call("publish", probe)
        return published

    def q_values(self, queries: Sequence[Query]) -> list[npt.NDArray[np.float32]]:
        """min_c Q_c of each query's actions."""
        values: list[npt.NDArray[np.float32]] = self._call("q_values", queries)
        return values

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Full tensors and values, as `Learner.state` gives them on one process."""
        state: tuple[dict[str, Any], dict[str, Any]] = self._call("state")
        return state

    def load_state(self, tensors: dict[str, Any], values: dict[str, Any]) -> None:
        """Take over what `state()` gave, on this number of ranks or another."""
        self._call("load_state", tensors, values)
        self.updates = self.begun = int(values["updates"])

    def exported(self) -> dict[str, bytes]:
        """The files of the agent: peft adapter and critic."""
        files: dict[str, bytes] = self._call("exported")
        return files

    def seconds(self) -> dict[str, float]:
        """The first rank's seconds by phase."""
        seconds: dict[str, float] = self._call("seconds")
        return seconds

    def wait_ready(self, timeout_s: float, tick: Callable[[], None] = lambda: None) -> None:
        """Wait until every rank has started, calling `tick` now and then, which may raise to give up."""
        self.collect(self._submit("seconds"), timeout_s, tick)

    def check(self) -> None:
        """Notice a dead rank at once where nothing is asked of the ranks for long, as in an evaluation.

        Raises:
            LearnerError: a rank is dead.
        """
        for worker in self._workers:
            try:
                worker.check()
            except WorkerLost as error:
                raise _lost(error) from error

    def _call(self, method: str, *args: Any) -> Any:
        return self.collect(self._submit(method, *args))

    def _submit(self, method: str, *args: Any) -> list[Pending]:
        return [worker.submit(method, *args, reply=rank == 0) for rank, worker in enumerate(self._workers)]

    def collect(
        self, pending: Sequence[Pending], timeout_s: float | None = None, tick: Callable[[], None] = lambda: None
    ) -> Any:
        """The first rank's result.

        Raises:
            LearnerError: a rank died or hangs.
        """
        try:
            return gather(pending, timeout_s or self._timeout_s, tick)[0]
        except WorkerLost as error:
            raise _lost(error) from error
        except SacglamError:
            raise
        except Exception as error:
            if len(self._workers) == 1:
                raise
            raise LearnerError(f"a learner rank failed: {_last_line(error)}") from error


class PendingUpdate:
    """An interval's updates, begun."""

    def __init__(self, group: LearnerGroup, pending: Sequence[Pending], updates: int) -> None:
        """`updates` is how many there will be."""
        self._group = group
        self._pending = pending
        self._updates = updates

    def finish(self) -> Learned:
        """Wait for them.

        Raises:
            LearnerError: a rank died or hangs.
            DivergenceError: a loss or a gradient is not finite.
        """
        learned: Learned = self._group.collect(self._pending)
        self._group.updates += self._updates
        return learned


def _lost(error: WorkerLost) -> LearnerError:
    return LearnerError(
        f"a learner rank was lost: {error}. Checkpoints are whole; go on from the last one with --resume"
    )


def _last_line(error: Exception) -> str:
    """What a remote traceback comes down to."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
