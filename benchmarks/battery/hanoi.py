"""The towers of Hanoi: three discs, and every arrangement of them is a goal."""

from collections.abc import Sequence
from itertools import product
from random import Random

from typing_extensions import override

from sacglam.envs.base import BaseEnv, Split
from sacglam.types import Observation, Step

DISCS = ("small", "middle", "large")
PEGS = ("left", "centre", "right")

Pegs = tuple[int, ...]
"""The peg of each disc."""


def _text(pegs: Pegs) -> str:
    return ", ".join(f"{disc} disc {PEGS[peg]}" for disc, peg in zip(DISCS, pegs, strict=True))


def _goal(pegs: Pegs) -> str:
    return f"Reach: {_text(pegs)}"


def _moves(pegs: Pegs) -> list[tuple[int, int]]:
    """The discs that can move, each with the pegs that it can move to."""
    top = [disc for disc, peg in enumerate(pegs) if peg not in pegs[:disc]]
    return [(disc, peg) for disc in top for peg in range(len(PEGS)) if peg not in pegs[: disc + 1]]


class Hanoi(BaseEnv[Pegs]):
    """Arrange the discs, of which only the top one of a peg moves, and never onto a smaller one."""

    def __init__(self, *, max_steps: int = 20) -> None:
        super().__init__("Hanoi", max_steps)
        self._space = {_goal(pegs): pegs for pegs in product(range(len(PEGS)), repeat=len(DISCS))}

    @override
    def goals(self, split: Split) -> Sequence[str]:
        return list(self._space) if split == "train" else []

    @override
    def goal_type(self, goal: str) -> str:
        return "reach"

    @override
    def _start(self, wanted: Pegs, rng: Random) -> Observation:
        self._pegs = rng.choice([pegs for pegs in self._space.values() if pegs != wanted])
        self._achieved.add(_goal(self._pegs))  # it holds already, so it is not achieved when it holds again
        return self._observe()

    @override
    def step(self, action: int) -> Step:
        disc, peg = _moves(self._pegs)[action]
        self._pegs = (*self._pegs[:disc], peg, *self._pegs[disc + 1 :])
        return self._outcome(self._observe(), [_goal(self._pegs)])

    def _observe(self) -> Observation:
        actions = tuple(f"Move {DISCS[disc]} to {PEGS[peg]}" for disc, peg in _moves(self._pegs))
        return Observation(f"Now: {_text(self._pegs)}", actions)
