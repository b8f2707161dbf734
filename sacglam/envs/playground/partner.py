"""The social partner: says in words what the agent has just achieved."""

from __future__ import annotations

from sacglam.envs.playground.goals import Goal, texts
from sacglam.envs.playground.vocabulary import Thing
from sacglam.envs.playground.world import Verb


class SocialPartner:
    """Describes one episode by the training goals it achieves, and by its own goal even if that one is held out.

    No other held-out goal is ever described, or hindsight would train on it.
    """

    def __init__(self, goal: Goal, sequential: bool) -> None:
        self._goal = goal
        self._sequential = sequential
        self._grown: dict[Thing, None] = {}  # what has grown so far, in the order it first did
        self._told: set[str] = set()

    def describe(self, verb: Verb, thing: Thing) -> tuple[str, ...]:
        """The goals achieved by `verb` happening to `thing` now and not earlier, in a fixed order."""
        candidates = list(texts(verb, thing, None))
        if self._sequential:
            for grown in self._grown:
                candidates += texts(verb, thing, grown)
        if self._goal.heldout and self._achieves_own(verb, thing):
            candidates.append(self._goal.text)
        new = tuple(text for text in dict.fromkeys(candidates) if text not in self._told)
        self._told.update(new)
        if verb is Verb.GROW:
            self._grown[thing] = None
        return new

    def remaining(self) -> int:
        """How many parts of the episode's goal are still to be achieved."""
        if self._goal.text in self._told:
            return 0
        return len(self._goal.parts) - self._first_part_done()

    def _achieves_own(self, verb: Verb, thing: Thing) -> bool:
        *_, last = self._goal.parts
        return last.fits(verb, thing) and (len(self._goal.parts) == 1 or self._first_part_done())

    def _first_part_done(self) -> bool:
        first, *rest = self._goal.parts
        return bool(rest) and any(first.fits(Verb.GROW, grown) for grown in self._grown)
