"""The words of Playground-Text, and the names that each of its 96 objects answers to.

Source: the paper, Appendix A, and the public Playground code of Colas et al. (2020).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sacglam.envs.playground.world import Kind

COLOURS = ("red", "blue", "green")
ANIMALS = ("dog", "cat", "chameleon", "human", "fly", "parrot", "mouse", "lion", "pig", "cow")
PLANTS = ("cactus", "carnivorous", "flower", "tree", "bush", "grass", "algae", "tea", "rose", "bonsai")
FURNITURE = ("door", "chair", "desk", "lamp", "table", "cupboard", "sink", "window", "sofa", "carpet")
SUPPLIES = ("food", "water")

LIVING: Mapping[str, tuple[str, ...]] = {"animal": ANIMALS, "plant": PLANTS, "living_thing": ANIMALS + PLANTS}
"""The categories of what can grow, each with its types."""

CATEGORIES: Mapping[str, tuple[str, ...]] = {**LIVING, "furniture": FURNITURE, "supply": SUPPLIES}
"""Every category with its types. A type may belong to two: a cat is an animal and a living_thing."""

KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(ANIMALS, Kind.ANIMAL),
    **dict.fromkeys(PLANTS, Kind.PLANT),
    **dict.fromkeys(FURNITURE, Kind.FURNITURE),
    "food": Kind.FOOD,
    "water": Kind.WATER,
}
"""The kind of each type, which is all that the rules need."""


class Thing(NamedTuple):
    """An object of a scene; a tuple, since it is hashed at every step."""

    colour: str
    type: str


@dataclass(frozen=True, slots=True)
class Name:
    """A name that objects answer to, such as `any red thing`, as a partly decided draw of an object.

    An object is drawn in three stages: a pool of `pools`, a type in that pool, a colour of `colours`. The name
    `red cat` leaves one choice at each stage; `any red thing` leaves the first two open.
    """

    text: str
    pools: tuple[tuple[str, ...], ...]
    colours: tuple[str, ...]

    def fits(self, thing: Thing) -> bool:
        """Whether `thing` answers to this name."""
        return thing.colour in self.colours and any(thing.type in pool for pool in self.pools)


ANYTHING = Name("anything", tuple(CATEGORIES.values()), COLOURS)
"""Not a goal's name, but the draw of any other object: a category first, so 1 in 5 is a supply."""


def names(categories: Mapping[str, tuple[str, ...]]) -> tuple[Name, ...]:
    """The names `c t`, `any t`, `c K`, `any K` and `any c thing` of the objects in these categories, each once."""
    types = dict.fromkeys(type_ for pool in categories.values() for type_ in pool)
    words = {type_: (type_,) for type_ in types} | dict(categories)
    everything = tuple(categories.values())
    return tuple(
        [Name(f"{colour} {word}", (pool,), (colour,)) for word, pool in words.items() for colour in COLOURS]
        + [Name(f"any {word}", (pool,), COLOURS) for word, pool in words.items()]
        + [Name(f"any {colour} thing", everything, (colour,)) for colour in COLOURS]
    )
