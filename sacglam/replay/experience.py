"""What an algorithm keeps of its rollouts, and the batches it learns from."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sacglam.replay.buffer import ReplayBuffer
from sacglam.replay.hindsight import hindsight_goals, transitions
from sacglam.types import Batches, Episode, RolloutBatch, Transition


class Experience(Protocol):
    """Takes what the rollout collected, and gives what the learner is to learn from."""

    def add(self, collected: RolloutBatch) -> None:
        """Take in an interval."""

    def batches(self) -> Batches:
        """What the algorithm learns from after this interval; nothing while it is too early."""

    def metrics(self, version: int) -> dict[str, float]:
        """What to report of it, when the learner has made `version` updates."""

    def state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Number columns (for npz) and JSON values."""

    def load_state(self, columns: dict[str, npt.NDArray[Any]], values: dict[str, Any]) -> None:
        """Take over what `state()` gave."""


class OnPolicy:
    """Keeps one interval's steps, and gives them once."""

    def __init__(self) -> None:
        """Holds nothing yet."""
        self._fragments: tuple[Episode, ...] = ()

    def add(self, collected: RolloutBatch) -> None:
        """Take the interval's steps in the place of those before."""
        self._fragments = collected.segments

    def batches(self) -> list[tuple[Episode, ...]]:
        """One batch: the interval."""
        return [self._fragments]

    def metrics(self, version: int) -> dict[str, float]:
        """Nothing."""
        return {}

    def state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Nothing: between intervals it holds only what has been learnt from."""
        return {}, {}

    def load_state(self, columns: dict[str, npt.NDArray[Any]], values: dict[str, Any]) -> None:
        """Take over nothing."""


class HindsightReplay:
    """Stores episodes as n-step transitions, for their own goal and for each goal achieved on the way."""

    def __init__(
        self,
        buffer: ReplayBuffer,
        rng: np.random.Generator,
        *,
        n_step: int,
        gamma: float,
        hindsight: bool,
        batch_size: int,
        batches: int,
        min_size: int,
    ) -> None:
        """`batches` of `batch_size` are drawn at each interval, once `min_size` transitions are there."""
        self.buffer = buffer
        self.rng = rng
        self._n_step = n_step
        self._gamma = gamma
        self._hindsight = hindsight
        self._batch_size = batch_size
        self._batches = batches
        self._min_size = min_size

    def add(self, collected: RolloutBatch) -> None:
        """Store whole episodes, and their relabelled prefixes beside them (paper, Section 2.3)."""
        for episode in collected.episodes:
            goals = [episode.goal, *hindsight_goals(episode)] if self._hindsight else [episode.goal]
            for goal in goals:
                self.buffer.add(transitions(episode, goal, self._n_step, self._gamma))

    def batches(self) -> list[list[Transition]]:
        """One interval's batches; none while the buffer holds too little."""
        if len(self.buffer) < self._min_size:
            return []
        return [self.buffer.sample(self.rng, self._batch_size) for _ in range(self._batches)]

    def metrics(self, version: int) -> dict[str, float]:
        """Size, share of relabelled transitions and age (in updates) of the oldest."""
        return {
            "buffer_size": float(len(self.buffer)),
            "buffer_hindsight_share": self.buffer.hindsight_share(),
            "buffer_oldest_age": float(version - self.buffer.oldest_version()),
        }

    def state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """The buffer's columns and texts, and the generator's state."""
        columns, texts = self.buffer.state()
        return columns, {"buffer": texts, "rng": self.rng.bit_generator.state}

    def load_state(self, columns: dict[str, npt.NDArray[Any]], values: dict[str, Any]) -> None:
        """Take over what `state()` gave."""
        self.buffer.load_state(columns, values["buffer"])
        self.rng.bit_generator.state = values["rng"]
