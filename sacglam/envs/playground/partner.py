"""The social partner, who says what the agent has just achieved."""

from sacglam.envs.playground.goals import Goal, texts
from sacglam.envs.playground.vocabulary import Thing
from sacglam.envs.playground.world import Verb


class SocialPartner:
    """Describes one episode by the training goals it achieves, and by its own goal even if that is held out.

    Other held-out goals are never described, or hindsight would train on them.
    """

    def __init__(self, goal: Goal, sequential: bool) -> None:
        self._goal = goal
        self._sequential = sequential
        self._grown: dict[Thing, None] = {}  # what has grown so far, in order
        self._said: set[str] = set()

    def describe(self, verb: Verb, thing: Thing) -> tuple[str, ...]:
        """The goals first achieved by `verb` happening to `thing` now, in a fixed order."""
        candidates = list(texts(verb, thing, None))
        if self._sequential:
            for grown in self._grown:
                candidates += texts(verb, thing, grown)
        *_, last = self._goal.parts
        due = len(self._goal.parts) == 1 or self._first_part_done()
        if self._goal.heldout and due and last.fits(verb, thing):
            candidates.append(self._goal.text)
        new = tuple(text for text in dict.fromkeys(candidates) if text not in self._said)
        self._said.update(new)
        if verb is Verb.GROW:
            self._grown[thing] = None
        return new

    def remaining(self) -> int:
        """How many parts of the episode's goal are left to achieve."""
        if self._goal.text in self._said:
            return 0
        return len(self._goal.parts) - self._first_part_done()

    def _first_part_done(self) -> bool:
        first, *rest = self._goal.parts
        return bool(rest) and any(first.fits(Verb.GROW, grown) for grown in self._grown)
