"""What an algorithm keeps of its rollouts, and the batches it learns from."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from typing_extensions import override

from sacglam.replay.buffer import ReplayBuffer
from sacglam.replay.sampling import WindowSampler
from sacglam.types import Batches, RolloutBatch, Window

# Share of each batch drawn from demonstrations alone, enough not to forget them. The replay graph joins them with the
# agent's own episodes, so the relabelled steps of the rest may be theirs, too.
DEMONSTRATED = 0.25


class Experience(ABC):
    """Takes the rollout's steps and returns the batches that the learner learns from."""

    @abstractmethod
    def add(self, collected: RolloutBatch) -> None:
        """Add one interval of the rollout."""

    @abstractmethod
    def batches(self) -> Batches:
        """The batches to learn from after this interval; empty while there is too little experience."""

    def missing(self) -> str:
        """Why there are no `batches` yet, as text; empty if there are."""
        return ""

    def metrics(self, version: int) -> dict[str, float]:
        """Metrics after `version` updates of the learner."""
        return {}

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint, as JSON values."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Restore what `state()` returned."""


class OnPolicy(Experience):
    """Keeps one interval's steps, as one batch. Has no state: by the time of a checkpoint they have been used."""

    def __init__(self) -> None:
        self._windows: tuple[Window, ...] = ()

    @override
    def add(self, collected: RolloutBatch) -> None:
        self._windows = collected.windows

    @override
    def batches(self) -> Batches:
        return [self._windows]


@dataclass(eq=False)
class HindsightReplay(Experience):
    """Keeps episodes, and draws windows of them towards their own goals and others that they achieved."""

    buffer: ReplayBuffer
    rng: np.random.Generator
    sampler: WindowSampler
    demonstrations: ReplayBuffer | None = None
    imitates: bool = False
    """Whether the demonstrations are worth imitating."""

    @override
    def add(self, collected: RolloutBatch) -> None:
        for episode in collected.episodes:
            self.buffer.add(episode)

    @override
    def batches(self) -> Batches:
        if self.missing():
            return []
        return [self._batch() for _ in range(self.sampler.algo.updates)]

    def _batch(self) -> list[Window]:
        size, draw = self.sampler.algo.batch_size, self.buffer.hindsight.batch
        if self.demonstrations is None:
            return draw(self.buffer, self.rng, self.sampler, size)
        theirs = round(DEMONSTRATED * size)
        own = draw(self.buffer, self.rng, self.sampler, size - theirs)
        drawn = draw(self.demonstrations, self.rng, self.sampler, theirs, self.buffer.graph)
        return own + [replace(row, imitated=self.imitates) for row in drawn]

    @override
    def missing(self) -> str:
        found, batch = len(self.buffer), self.sampler.algo.batch_size
        enough = found >= min(batch, self.buffer.capacity)
        return "" if enough else f"algo.batch_size is {batch:,} and ended episodes gave {found:,} steps"

    @override
    def metrics(self, version: int) -> dict[str, float]:
        return {
            "buffer_size": float(len(self.buffer)),
            "buffer_hindsight_share": self.buffer.hindsight_share(),
            "buffer_oldest_age": float(version - self.buffer.oldest_version()),  # in updates
        }

    @override
    def state(self) -> dict[str, Any]:
        return {"buffer": self.buffer.state(), "rng": self.rng.bit_generator.state}

    @override
    def load_state(self, state: dict[str, Any]) -> None:
        self.buffer.load_state(state["buffer"])
        self.rng.bit_generator.state = state["rng"]
