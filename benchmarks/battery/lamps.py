"""Five lamps in a ring: a press switches a lamp and its right neighbour, and every arrangement is a goal.

Which press is right depends on where the state and the goal differ, which a language model has to learn to see.
"""

from itertools import product
from random import Random
from typing import ClassVar

from benchmarks.battery.arrangements import Arrangement, Arrangements
from sacglam.types import Observation

LAMPS = ("red", "green", "blue", "white", "yellow")


def _text(lit: Arrangement) -> str:
    return ", ".join(f"{lamp} {'on' if on else 'off'}" for lamp, on in zip(LAMPS, lit, strict=True))


class Lamps(Arrangements):
    """Make an arrangement that is a few presses away."""

    by_goal: ClassVar = {f"Make {_text(lit)}": lit for lit in product((0, 1), repeat=len(LAMPS))}

    def __init__(self, *, max_steps: int = 15) -> None:
        super().__init__(max_steps=max_steps)

    def start(self, goal: Arrangement, rng: Random) -> Arrangement:
        now = goal
        while now == goal:
            for _ in range(rng.randint(1, 4)):
                now = self.moved(now, rng.randrange(len(LAMPS)))
        return now

    def moved(self, now: Arrangement, action: int) -> Arrangement:
        switched = (action, (action + 1) % len(LAMPS))
        return tuple(on ^ (lamp in switched) for lamp, on in enumerate(now))

    def observation(self, now: Arrangement) -> Observation:
        return Observation(f"Lamps: {_text(now)}", tuple(f"Press {lamp}" for lamp in LAMPS))
