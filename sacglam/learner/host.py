"""What a learner rank answers, in the driver's process or in one of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sacglam.clock import PhaseClock
from sacglam.learner.learner import Learner
from sacglam.types import Batches, Learned, Published, Query


class LearnerHost:
    """A `Learner` with the clock it counts on."""

    def __init__(self, learner: Learner, clock: PhaseClock, first: bool = True) -> None:
        """`clock` is the one that `learner` was given. Ranks other than the `first` compute, and send nothing large."""
        self._first = first
        self._learner = learner
        self._clock = clock

    def learn(self, batches: Batches, publish: bool, probe: Sequence[Query]) -> Learned:
        """One interval's updates, and if asked the adapter after them with the policy at the states of `probe`."""
        metrics = self._learner.update(batches)
        published = self.publish(probe) if publish else None
        return Learned(metrics, published if self._first else None)

    def publish(self, probe: Sequence[Query]) -> Published:
        """The adapter of now, and the learner's policy at the states of `probe`."""
        with self._clock.phase("publish"):
            return Published(self._learner.adapter(), self._learner.log_policy(probe) if probe else [])

    def q_values(self, queries: Sequence[Query]) -> list[npt.NDArray[np.float32]]:
        """As `Learner.q_values`."""
        return self._learner.q_values(queries)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """As `Learner.state`."""
        state = self._learner.state()
        return state if self._first else ({}, {})

    def load_state(self, tensors: dict[str, Any], values: dict[str, Any]) -> None:
        """As `Learner.load_state`."""
        self._learner.load_state(tensors, values)

    def exported(self) -> dict[str, bytes]:
        """As `Learner.exported`."""
        files = self._learner.exported()
        return files if self._first else {}

    def seconds(self) -> dict[str, float]:
        """Seconds by phase."""
        return self._clock.seconds
