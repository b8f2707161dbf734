"""The interfaces of scorers, and the random policy."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from sacglam.types import Adapter, LogPolicy, Query


class Scorer(Protocol):
    """Computes the policy at many states at once."""

    @property
    def version(self) -> int:
        """The version of the policy that the next scores come from, in learner updates."""

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        """log pi over each query's own actions (paper, Eq. 2), one float32 array (A,) for each."""


class Engine(Scorer, ABC):
    """A scorer whose weights are separate from the learner's. It scores with the adapter that it last loaded."""

    version: int = 0
    """Version of the loaded adapter, in learner updates; 0, the base model, before the first."""

    @abstractmethod
    def load(self, adapter: Adapter) -> None:
        """Replace the adapter; every later score comes from this one."""

    def score(self, queries: Sequence[Query]) -> tuple[int, list[LogPolicy]]:
        """The version that scores, and its policies at `queries`."""
        return self.version, self.log_policy(queries)


class UniformScorer:
    """The uniformly random policy, the baseline of every evaluation."""

    version = 0

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        """log (1 / |A|) for every action."""
        return [np.full(len(q.actions), -np.log(len(q.actions)), dtype=np.float32) for q in queries]
