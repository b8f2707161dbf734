"""What an algorithm keeps of its rollouts, and the batches it learns from."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from typing_extensions import override

from sacglam.config import AlgoConfig, ReplayConfig
from sacglam.replay.buffer import Columns, Entry, ReplayBuffer
from sacglam.replay.graph import ReplayGraph
from sacglam.replay.hindsight import window
from sacglam.types import Batches, RolloutBatch, Window


class Experience(ABC):
    """Takes what the rollout collects and returns what the learner learns from."""

    @abstractmethod
    def add(self, collected: RolloutBatch) -> None:
        """Add one interval of the rollout."""

    @abstractmethod
    def batches(self) -> Batches:
        """The batches to learn from after this interval; empty while there is too little experience."""

    def missing(self) -> str:
        """What is missing for `batches`, as text; empty if nothing is."""
        return ""

    def metrics(self, version: int) -> dict[str, float]:
        """Metrics after `version` updates of the learner."""
        return {}

    def state(self) -> tuple[Columns, dict[str, Any]]:
        """The state for a checkpoint: number columns (for npz) and JSON values."""
        return {}, {}

    def load_state(self, columns: Columns, values: dict[str, Any]) -> None:  # noqa: B027
        """Restore what `state()` returned."""


class OnPolicy(Experience):
    """Keeps one interval's steps, as one batch. Stateless: at a checkpoint they have been learnt from."""

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
    """Keeps episodes, and draws windows of them towards their own goals and those that they achieved on the way."""

    buffer: ReplayBuffer
    rng: np.random.Generator
    algo: AlgoConfig
    replay: ReplayConfig
    history: int = 0  # steps before a window that prompts show
    _graph: ReplayGraph | None = field(init=False, default=None)  # of what the buffer holds, once it is needed

    @override
    def add(self, collected: RolloutBatch) -> None:
        for episode in collected.episodes:
            self.buffer.add(episode)
            self._graph = None

    @override
    def batches(self) -> Batches:
        if self.missing():
            return []
        if self._graph is None and self.replay.joins:
            self._graph = ReplayGraph(self.buffer.episodes(), self.algo.gamma)
        return [self._batch() for _ in range(self.algo.updates)]

    @override
    def missing(self) -> str:
        found, needed = len(self.buffer), self.replay.min_size
        return f"replay.min_size is {needed:,} and ended episodes gave {found:,} steps" if found < needed else ""

    def _batch(self) -> list[Window]:
        found = self._on_graph(self._graph) if self._graph is not None else []
        missing = self.algo.batch_size - len(found)
        while missing > 0:
            for entry in self.buffer.sample(self.rng, -(-missing // self.algo.window)):
                found.append(self._window(entry))
                missing -= self.algo.learnt_steps(found[-1])
        return found

    def _on_graph(self, graph: ReplayGraph) -> list[Window]:
        """Steps towards goals drawn uniformly from those achieved: each a window of its own, for variety."""
        goals = graph.goals
        wanted = int(self.replay.hindsight_ratio * self.algo.batch_size + self.rng.random()) if goals else 0
        drawn = (goals[int(self.rng.integers(len(goals)))] for _ in range(wanted))
        return [self._known_step(graph, goal) for goal in drawn]

    def _known_step(self, graph: ReplayGraph, goal: str) -> Window:
        """One step, which returns what the best known path after it does; where none is known, its value follows."""
        episode, t = graph.draw(self.rng, goal)
        observations, action = (episode.observation(t), episode.observation(t + 1)), episode.decisions[t].action
        known = graph.action_values(goal, observations[0])
        return Window(
            goal=goal,
            observations=observations,
            actions=(action,),
            rewards=(known[action],),
            terminated=known[action] > 0 or episode.loses_at(t),
            source="hindsight",
            return_after=0.0,
            before=episode.past(t, self.history),
            known=(known,),
        )

    def _window(self, entry: Entry) -> Window:
        found = window(entry.episode, entry.goal, entry.start, self.algo.window_length, self.algo.gamma, self.history)
        if self._graph is None:
            return found
        learnt = found.observations[: self.algo.learnt_steps(found)]
        return replace(found, known=tuple(self._graph.action_values(entry.goal, state) for state in learnt))

    @override
    def metrics(self, version: int) -> dict[str, float]:
        return {
            "buffer_size": float(len(self.buffer)),
            "buffer_hindsight_share": self.buffer.hindsight_share(),
            "buffer_oldest_age": float(version - self.buffer.oldest_version()),  # in updates
        }

    @override
    def state(self) -> tuple[Columns, dict[str, Any]]:
        columns, texts = self.buffer.state()
        return columns, {"buffer": texts, "rng": self.rng.bit_generator.state}

    @override
    def load_state(self, columns: Columns, values: dict[str, Any]) -> None:
        self.buffer.load_state(columns, values["buffer"])
        self._graph = None
        self.rng.bit_generator.state = values["rng"]
