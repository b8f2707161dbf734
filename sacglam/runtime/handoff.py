"""Sends adapters from the learner to the engines, and compares their policies (the parity gate)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sacglam.clock import PhaseClock
from sacglam.errors import ParityError
from sacglam.runtime.engines import EngineGroup
from sacglam.types import Adapter, LogPolicy, Query


@dataclass(eq=False)
class Handoff:
    """Loads each adapter into all engines, and checks some of them at the parity gate.

    `queries` are the fixed probe states; `tolerance` bounds their mean total variation, since in bfloat16 rounding can
    move a single state as far as a fault does. `every` counts updates, so that a resumed run compares at the same
    updates as an uninterrupted one.
    """

    engines: EngineGroup
    queries: Sequence[Query]
    tolerance: float
    every: int
    clock: PhaseClock
    first: int = 0
    """Number of updates at which `every` starts to count."""

    def probe(self, updates: int) -> Sequence[Query]:
        """The probe states, or none if no comparison is due."""
        return self.queries if (updates - self.first) % self.every == 0 else ()

    def deliver(self, adapter: Adapter) -> dict[str, float]:
        """Load the adapter and, if it comes with the learner's policy at the probe states, compare.

        Raises:
            ParityError: an engine's policy differs from the learner's by more than the tolerance.
        """
        with self.clock.phase("handoff"):
            self.engines.load(adapter)
        if not adapter.probe:
            return {}
        with self.clock.phase("parity"):
            return {"parity_gap": self._compare(adapter.probe)}

    def _compare(self, learner: Sequence[LogPolicy]) -> float:
        largest = 0.0
        for index, engine in enumerate(self.engines.log_policy_of_each(self.queries)):
            gaps = [total_variation(mine, theirs) for mine, theirs in zip(learner, engine, strict=True)]
            mean, worst = float(np.mean(gaps)), int(np.argmax(gaps))  # the first NaN, if there is one
            if not mean <= self.tolerance:
                raise ParityError(
                    f"engine {index} and the learner differ by {mean:.2g} in total variation (mean over {len(gaps)} "
                    f"states) at adapter version {self.engines.version}, beyond the tolerance {self.tolerance:.2g}"
                    ". The state where they differ most:\n" + _table(self.queries[worst], learner[worst], engine[worst])
                )
            largest = max(largest, mean)
        return largest


def total_variation(log_p: LogPolicy, log_q: LogPolicy) -> float:
    """Half the sum of |p - q| over the actions: 0 for equal policies, 1 for disjoint ones."""
    return float(0.5 * np.abs(np.exp(log_p.astype(np.float64)) - np.exp(log_q.astype(np.float64))).sum())


def _table(query: Query, learner: LogPolicy, engine: LogPolicy) -> str:
    rows = [
        f"  {p:10.6f}  {q:10.6f}  {action.strip()}"
        for action, p, q in zip(query.actions, np.exp(learner), np.exp(engine), strict=True)
    ]
    return "\n".join([f"At {query.prompt!r}:", f"  {'learner':>10}  {'engine':>10}  action", *rows])
