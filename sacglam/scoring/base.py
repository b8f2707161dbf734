"""What the rollout needs of a scorer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sacglam.types import Adapter, Query

LogPolicy = npt.NDArray[np.float32]


class Scorer(Protocol):
    """Gives the policy at many states at once. Where it computes is its own affair."""

    @property
    def version(self) -> int:
        """The version of the policy that the next scores come from, in learner updates."""

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        """log pi over each query's own actions (paper, Eq. 2), one float32 array (A,) for each."""


class Engine(Scorer, Protocol):
    """A scorer apart from the learner: it holds weights of its own, and scores with the adapter it last loaded."""

    def load(self, adapter: Adapter) -> None:
        """Score with `adapter` from the next call on; when this returns, the version before is gone."""


@dataclass(frozen=True)
class Published:
    """An adapter on its way to the engines, with the learner's own policy at fixed states to hold theirs against."""

    adapter: Adapter
    probe: list[LogPolicy]


@dataclass(frozen=True)
class Learned:
    """What one interval's updates gave: metrics of each, and the adapter after the last if it was asked for."""

    metrics: list[dict[str, float]]
    published: Published | None


class UniformScorer:
    """The uniformly random policy, the yardstick of every evaluation."""

    version = 0

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        """log (1 / |A|) for every action."""
        return [np.full(len(q.actions), -np.log(len(q.actions)), dtype=np.float32) for q in queries]
