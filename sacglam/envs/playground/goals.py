"""The goals of Playground-Text: 182 single training goals, 8,470 with the sequential ones, and the held-out goals."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from sacglam.envs.playground.vocabulary import CATEGORIES, LIVING, PLANTS, Name, Thing, names
from sacglam.envs.playground.world import Verb

_HELD_OUT_PHRASES = ("red tree", "green dog", "blue door", "flower")
_HELD_OUT_LAST_WORDS = {
    Verb.GRASP: frozenset({"animal", "fly"}),
    Verb.GROW: frozenset({*PLANTS, "plant", "living_thing"}),
}


@dataclass(frozen=True, slots=True)
class Single:
    """`Grasp NAME` or `Grow NAME`."""

    text: str
    verb: Verb
    name: Name

    @property
    def heldout(self) -> bool:
        """Whether this goal is never trained on."""
        return self.name.text.split()[-1] in _HELD_OUT_LAST_WORDS[self.verb] or any(
            phrase in self.name.text for phrase in _HELD_OUT_PHRASES
        )

    def fits(self, verb: Verb, thing: Thing) -> bool:
        """Whether `verb` happening to `thing` achieves this goal."""
        return verb == self.verb and self.name.fits(thing)


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal as its parts: one, or for a sequential goal two that must be achieved in this order."""

    text: str
    parts: tuple[Single, ...]

    @property
    def type(self) -> str:
        """`grasp`, `grow`, `grow_then_grasp` or `grow_then_grow`."""
        return "_then_".join(part.verb.name.lower() for part in self.parts)

    @property
    def heldout(self) -> bool:
        """Whether any part is held out."""
        return any(part.heldout for part in self.parts)


@cache
def singles() -> tuple[Single, ...]:
    """All 151 Grasp and 95 Grow goals, for training or held out."""
    grasp = [Single(f"Grasp {name.text}", Verb.GRASP, name) for name in names(CATEGORIES)]
    grow = [Single(f"Grow {name.text}", Verb.GROW, name) for name in names(LIVING)]
    return (*grasp, *grow)


def pairs(first: Single, second: Single) -> bool:
    """Whether `first then second` is a goal: first grows, and they differ in their last or second-last word."""
    return first.verb is Verb.GROW and first.name.text.split()[-2:] != second.name.text.split()[-2:]


@cache
def sequence(first: str, second: str) -> str:
    """The text of the sequential goal, e.g. `Grow any cat then grasp red dog`. Cached: hindsight repeats them."""
    return f"{first} then {second[0].lower()}{second[1:]}"


@cache
def family(sequential: bool) -> Mapping[str, Goal]:
    """All goals by their texts, single ones first, in a fixed order: 246, or 23,426 if `sequential`."""
    goals = [Goal(single.text, (single,)) for single in singles()]
    if sequential:
        both = ((first, second) for first in singles() for second in singles() if pairs(first, second))
        goals += [Goal(sequence(first.text, second.text), (first, second)) for first, second in both]
    return {goal.text: goal for goal in goals}


@cache
def goals(sequential: bool, heldout: bool) -> tuple[str, ...]:
    """The goals to train on, 182 or 8,470 if `sequential`, or those held out, 64 or 14,956."""
    return tuple(goal.text for goal in family(sequential).values() if goal.heldout == heldout)


@cache
def trained_on(verb: Verb, thing: Thing) -> tuple[Single, ...]:
    """The single training goals that `verb` happening to `thing` achieves."""
    return tuple(single for single in singles() if not single.heldout and single.fits(verb, thing))


@cache
def texts(verb: Verb, thing: Thing, grown: Thing | None) -> tuple[str, ...]:
    """The training goals achieved by `verb` happening to `thing`: single, or sequential if `grown` grew earlier."""
    last = trained_on(verb, thing)
    if grown is None:
        return tuple(single.text for single in last)
    return tuple(sequence(a.text, b.text) for a in trained_on(Verb.GROW, grown) for b in last if pairs(a, b))
