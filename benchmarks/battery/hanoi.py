"""The towers of Hanoi: three discs, and every arrangement of them is a goal.

A goal that held at the start is not listed when it holds again, as the contract allows.
"""

from collections.abc import Sequence
from itertools import product
from random import Random

from sacglam.envs import Split
from sacglam.types import Observation, Step

DISCS = ("small", "middle", "large")
PEGS = ("left", "centre", "right")


def _text(pegs: Sequence[int]) -> str:
    return ", ".join(f"{disc} disc {PEGS[peg]}" for disc, peg in zip(DISCS, pegs, strict=True))


GOALS = {f"Reach: {_text(pegs)}": pegs for pegs in product(range(len(PEGS)), repeat=len(DISCS))}


class Hanoi:
    """Arrange the discs, of which only the top one of a peg moves, and never onto a smaller one."""

    def __init__(self, *, max_steps: int = 20) -> None:
        self._max_steps = max_steps

    def goals(self, split: Split) -> Sequence[str]:
        return list(GOALS) if split == "train" else []

    def goal_type(self, goal: str) -> str:
        return "reach"

    def reset(self, goal: str, seed: int) -> Observation:
        self._goal, self._steps = goal, 0
        self._pegs = Random(f"{seed} {goal}").choice([pegs for pegs in GOALS.values() if pegs != GOALS[goal]])
        self._seen = {self._pegs}
        return self._observe()

    def _moves(self) -> list[tuple[int, int]]:
        """The discs that can move, each with the pegs that it can move to."""
        top = [disc for disc, peg in enumerate(self._pegs) if peg not in self._pegs[:disc]]
        return [(disc, peg) for disc in top for peg in range(len(PEGS)) if peg not in self._pegs[: disc + 1]]

    def step(self, action: int) -> Step:
        disc, peg = self._moves()[action]
        self._pegs = (*self._pegs[:disc], peg, *self._pegs[disc + 1 :])
        self._steps += 1
        achieved = () if self._pegs in self._seen else (f"Reach: {_text(self._pegs)}",)
        self._seen.add(self._pegs)
        terminated = self._goal in achieved
        return Step(
            self._observe(),
            float(terminated),
            achieved,
            terminated,
            not terminated and self._steps >= self._max_steps,
        )

    def _observe(self) -> Observation:
        actions = tuple(f"Move {DISCS[disc]} to {PEGS[peg]}" for disc, peg in self._moves())
        return Observation(f"Now: {_text(self._pegs)}", actions)
