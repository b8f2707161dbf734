"""A house of rooms: each room offers only the doors it has. The example of docs/start/environments.md."""

from collections.abc import Sequence
from random import Random

from sacglam.envs import Split
from sacglam.errors import ConfigError
from sacglam.types import Observation, Step

DOORS = {
    "hall": ("kitchen", "library", "garden"),
    "kitchen": ("hall", "cellar"),
    "library": ("hall",),
    "garden": ("hall", "kitchen"),
    "cellar": ("kitchen",),
}


class House:
    """Visit a room. Goals read `Visit the cellar`."""

    def __init__(self, *, max_steps: int = 8) -> None:
        self._max_steps = max_steps

    def goals(self, split: Split) -> Sequence[str]:
        return [f"Visit the {room}" for room in DOORS] if split == "train" else []

    def goal_type(self, goal: str) -> str:
        return "visit"

    def reset(self, goal: str, seed: int) -> Observation:
        if goal not in self.goals("train"):
            raise ConfigError(f"{goal!r} is no goal of this house; expected one of {self.goals('train')}")
        self._goal, self._steps = goal, 0
        self._visited: set[str] = set()
        self._room = Random(f"{seed} {goal}").choice([room for room in DOORS if not goal.endswith(room)])
        return self._observe()

    def step(self, action: int) -> Step:
        self._room = DOORS[self._room][action]
        self._steps += 1
        achieved = () if self._room in self._visited else (f"Visit the {self._room}",)
        self._visited.add(self._room)
        terminated = self._goal in achieved
        truncated = not terminated and self._steps >= self._max_steps
        return Step(self._observe(), float(terminated), achieved, terminated, truncated)

    def optimal_length(self) -> int | None:
        return None  # no planner

    def _observe(self) -> Observation:
        return Observation(f"You are in: {self._room}", tuple(f"Go to {room}" for room in DOORS[self._room]))
