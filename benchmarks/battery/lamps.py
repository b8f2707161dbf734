"""Five lamps in a ring: a press switches a lamp and its right neighbour, and every arrangement is a goal.

Which press is right depends on where the state and the goal differ, which a language model has to learn to see.
"""

from collections.abc import Sequence
from itertools import product
from random import Random

from sacglam.envs import Split
from sacglam.types import Observation, Step

LAMPS = ("red", "green", "blue", "white", "yellow")


def _text(lit: Sequence[bool]) -> str:
    return ", ".join(f"{lamp} {'on' if on else 'off'}" for lamp, on in zip(LAMPS, lit, strict=True))


GOALS = {f"Make {_text(lit)}": lit for lit in product((False, True), repeat=len(LAMPS))}


class Lamps:
    """Make an arrangement that is a few presses away."""

    def __init__(self, *, max_steps: int = 15) -> None:
        self._max_steps = max_steps

    def goals(self, split: Split) -> Sequence[str]:
        return list(GOALS) if split == "train" else []

    def goal_type(self, goal: str) -> str:
        return "make"

    def reset(self, goal: str, seed: int) -> Observation:
        rng = Random(f"{seed} {goal}")
        self._goal, self._steps, self._lit = goal, 0, GOALS[goal]
        while self._lit == GOALS[goal]:
            for _ in range(rng.randint(1, 4)):
                self._press(rng.randrange(len(LAMPS)))
        self._seen = {self._lit}
        return self._observe()

    def _press(self, lamp: int) -> None:
        switched = (lamp, (lamp + 1) % len(LAMPS))
        self._lit = tuple(on != (number in switched) for number, on in enumerate(self._lit))

    def step(self, action: int) -> Step:
        self._press(action)
        self._steps += 1
        achieved = () if self._lit in self._seen else (f"Make {_text(self._lit)}",)
        self._seen.add(self._lit)
        terminated = self._goal in achieved
        return Step(
            self._observe(),
            float(terminated),
            achieved,
            terminated,
            not terminated and self._steps >= self._max_steps,
        )

    def _observe(self) -> Observation:
        return Observation(f"Lamps: {_text(self._lit)}", tuple(f"Press {lamp}" for lamp in LAMPS))
