"""Five lamps in a ring: a press switches a lamp and its right neighbour, and every arrangement is a goal.

Which press is right depends on where the state and the goal differ, which a language model has to learn to see.
"""

from collections.abc import Sequence
from itertools import product
from random import Random

from typing_extensions import override

from sacglam.envs.base import BaseEnv, Split
from sacglam.types import Observation, Step

LAMPS = ("red", "green", "blue", "white", "yellow")

Lit = tuple[bool, ...]
"""Which lamps are on."""


def _text(lit: Lit) -> str:
    return ", ".join(f"{lamp} {'on' if on else 'off'}" for lamp, on in zip(LAMPS, lit, strict=True))


def _goal(lit: Lit) -> str:
    return f"Make {_text(lit)}"


class Lamps(BaseEnv[Lit]):
    """Make an arrangement that is a few presses away."""

    def __init__(self, *, max_steps: int = 15) -> None:
        super().__init__("Lamps", max_steps)
        self._space = {_goal(lit): lit for lit in product((False, True), repeat=len(LAMPS))}

    @override
    def goals(self, split: Split) -> Sequence[str]:
        return list(self._space) if split == "train" else []

    @override
    def goal_type(self, goal: str) -> str:
        return "make"

    @override
    def _start(self, wanted: Lit, rng: Random) -> Observation:
        self._lit = wanted
        while self._lit == wanted:
            for _ in range(rng.randint(1, 4)):
                self._press(rng.randrange(len(LAMPS)))
        self._achieved.add(_goal(self._lit))  # it holds already, so it is not achieved when it holds again
        return self._observe()

    @override
    def step(self, action: int) -> Step:
        self._press(action)
        return self._outcome(self._observe(), [_goal(self._lit)])

    def _press(self, lamp: int) -> None:
        switched = (lamp, (lamp + 1) % len(LAMPS))
        self._lit = tuple(on != (number in switched) for number, on in enumerate(self._lit))

    def _observe(self) -> Observation:
        return Observation(f"Lamps: {_text(self._lit)}", tuple(f"Press {lamp}" for lamp in LAMPS))
