"""The towers of Hanoi: three discs, and every arrangement of them is a goal."""

from itertools import product
from random import Random
from typing import ClassVar

from benchmarks.battery.arrangements import Arrangement, Arrangements
from sacglam.types import Observation

DISCS = ("small", "middle", "large")
PEGS = ("left", "centre", "right")


def _text(pegs: Arrangement) -> str:
    return ", ".join(f"{disc} disc {PEGS[peg]}" for disc, peg in zip(DISCS, pegs, strict=True))


def _moves(pegs: Arrangement) -> list[tuple[int, int]]:
    """The discs that can move, each with the pegs that it can move to."""
    top = [disc for disc, peg in enumerate(pegs) if peg not in pegs[:disc]]
    return [(disc, peg) for disc in top for peg in range(len(PEGS)) if peg not in pegs[: disc + 1]]


class Hanoi(Arrangements):
    """Arrange the discs, of which only the top one of a peg moves, and never onto a smaller one."""

    by_goal: ClassVar = {f"Reach: {_text(pegs)}": pegs for pegs in product(range(len(PEGS)), repeat=len(DISCS))}

    def __init__(self, *, max_steps: int = 20) -> None:
        super().__init__(max_steps=max_steps)

    def start(self, goal: Arrangement, rng: Random) -> Arrangement:
        return rng.choice([pegs for pegs in self.by_goal.values() if pegs != goal])

    def moved(self, now: Arrangement, action: int) -> Arrangement:
        disc, peg = _moves(now)[action]
        return (*now[:disc], peg, *now[disc + 1 :])

    def observation(self, now: Arrangement) -> Observation:
        return Observation(f"Now: {_text(now)}", tuple(f"Move {DISCS[d]} to {PEGS[p]}" for d, p in _moves(now)))
