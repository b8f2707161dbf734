"""The goals of Playground-Text: 182 single training goals, 8,470 with the sequential ones, and the held-out goals."""

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

from sacglam.envs.playground.vocabulary import CATEGORIES, LIVING, PLANTS, Name, Thing, names
from sacglam.envs.playground.world import Verb
from sacglam.errors import ConfigError

_THEN = " then "
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
    return f"{first}{_THEN}{second[0].lower()}{second[1:]}"


@cache
def goals(sequential: bool, heldout: bool) -> tuple[str, ...]:
    """The training or held-out goals, single ones first, in a fixed order.

    A pair is held out if one of its parts is. There are 182 for training, or 8,470 if `sequential`; 64 are held out,
    or 14,956.
    """
    alone = [single.text for single in singles() if single.heldout == heldout]
    if not sequential:
        return tuple(alone)
    together = [
        sequence(first.text, second.text)
        for first in singles()
        for second in singles()
        if pairs(first, second) and (first.heldout or second.heldout) == heldout
    ]
    return (*alone, *together)


@cache
def _single_by_text() -> dict[str, Single]:
    return {single.text: single for single in singles()}


@cache
def parse(text: str) -> Goal:
    """The goal with this text.

    Raises:
        ConfigError: there is none.
    """
    known = _single_by_text()
    first, then, second = text.partition(_THEN)
    parts = (first, second[:1].upper() + second[1:]) if then else (first,)
    for part in parts:
        if part not in known:
            near = get_close_matches(part, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "; a part reads 'Grasp NAME' or 'Grow NAME'"
            raise ConfigError(f"{text!r} is not a Playground goal: {part!r} is not a part of one{hint}")
    goal = Goal(text, tuple(known[part] for part in parts))
    if then and (not pairs(*goal.parts) or sequence(*(part.text for part in goal.parts)) != text):
        raise ConfigError(
            f"{text!r} is not a Playground goal: expected 'Grow NAME then grasp NAME' or 'Grow NAME then grow NAME', "
            "the two names different, the second part in lower case"
        )
    return goal


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
