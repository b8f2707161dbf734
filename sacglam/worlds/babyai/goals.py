"""The goals of BabyAI-Text: the missions of GLAM (Carta et al., 2023), each with one text.

Minigrid writes "a red ball" if a scene has two of them, and "the red ball" if it has one. A goal must not depend on
the scene, so it always says "the", and any red ball will do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import permutations

from sacglam.envs.playground.vocabulary import Thing

COLOURS = ("blue", "green", "grey", "purple", "red", "yellow")
TYPES = ("key", "ball", "box")
ANY_DOOR = Thing("", "door")
"""What `open the door` asks for."""

TASKS: Mapping[str, tuple[str, ...]] = {
    "go_to": ("go_to",),
    "pick_up": ("pick_up",),
    "put_next": ("put_next",),
    "open": ("open",),
    "sequence": ("pick_up_then_go_to", "go_to_after_pick_up", "pick_up_then_pick_up", "pick_up_after_pick_up"),
}
"""The tasks that the option `tasks` names, and the types of their goals."""

_TEXTS = {
    "go_to": "go to the {0}",
    "pick_up": "pick up the {0}",
    "put_next": "put the {0} next to the {1}",
    "open": "open the {0}",
    "pick_up_then_go_to": "pick up the {0}, then go to the {1}",
    "go_to_after_pick_up": "go to the {1} after you pick up the {0}",
    "pick_up_then_pick_up": "pick up the {0}, then pick up the {1}",
    "pick_up_after_pick_up": "pick up the {1} after you pick up the {0}",
}
_HELD_OUT_OBJECTS = ("yellow box", "red key", "red door", "green ball", "grey door")
TRAINING_DOORS = tuple(colour for colour in COLOURS if f"{colour} door" not in _HELD_OUT_OBJECTS)
_HELD_OUT_TYPES = ("pick_up_then_pick_up", "pick_up_after_pick_up")


def text(type_: str, *things: Thing) -> str:
    """The goal of this type about `things`, in the order in which the agent needs them."""
    return _TEXTS[type_].format(*(f"{thing.colour} {thing.type}".strip() for thing in things))


@dataclass(frozen=True, slots=True)
class Goal:
    """A mission about one or two things, in the order in which the agent needs them."""

    text: str
    type: str
    things: tuple[Thing, ...]

    @property
    def heldout(self) -> bool:
        """Whether this goal is never trained on: GLAM holds out five objects, and picking up twice."""
        return self.type in _HELD_OUT_TYPES or any(words in self.text for words in _HELD_OUT_OBJECTS)


@cache
def family(tasks: tuple[str, ...]) -> Mapping[str, Goal]:
    """All goals of `tasks` by their texts, in a fixed order. Two things in one goal are never the same."""
    objects = [Thing(colour, type_) for type_ in TYPES for colour in COLOURS]
    single, doors = [(thing,) for thing in objects], [(ANY_DOOR,), *((Thing(colour, "door"),) for colour in COLOURS)]
    things = {"go_to": single, "pick_up": single, "open": doors}
    goals = [
        Goal(text(type_, *about), type_, about)
        for task in tasks
        for type_ in TASKS[task]
        for about in things.get(type_) or permutations(objects, 2)
    ]
    return {goal.text: goal for goal in goals}
