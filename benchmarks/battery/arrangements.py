"""Puzzles in which every arrangement of some things is a goal.

A goal that held at the start is not listed when it holds again, as the contract allows.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from random import Random
from typing import ClassVar

from sacglam.envs import Split
from sacglam.types import Observation, Step

Arrangement = tuple[int, ...]


class Arrangements(ABC):
    """A puzzle; a subclass says where an episode starts and what a move does."""

    by_goal: ClassVar[Mapping[str, Arrangement]]

    def __init__(self, *, max_steps: int) -> None:
        self._max_steps = max_steps
        self._goals = {arrangement: goal for goal, arrangement in self.by_goal.items()}

    @abstractmethod
    def start(self, goal: Arrangement, rng: Random) -> Arrangement:
        """Another arrangement, from which `goal` can be reached."""

    @abstractmethod
    def moved(self, now: Arrangement, action: int) -> Arrangement:
        """What `action` makes of `now`."""

    @abstractmethod
    def observation(self, now: Arrangement) -> Observation:
        """What the agent sees."""

    def goals(self, split: Split) -> Sequence[str]:
        return list(self.by_goal) if split == "train" else []

    def goal_type(self, goal: str) -> str:
        """Its verb."""
        return goal.split()[0].lower().removesuffix(":")

    def reset(self, goal: str, seed: int) -> Observation:
        self._goal, self._steps = goal, 0
        self._now = self.start(self.by_goal[goal], Random(f"{seed} {goal}"))
        self._seen = {self._now}
        return self.observation(self._now)

    def step(self, action: int) -> Step:
        self._now = self.moved(self._now, action)
        self._steps += 1
        achieved = () if self._now in self._seen else (self._goals[self._now],)
        self._seen.add(self._now)
        terminated = self._goal in achieved
        truncated = not terminated and self._steps >= self._max_steps
        return Step(self.observation(self._now), float(terminated), achieved, terminated, truncated)
