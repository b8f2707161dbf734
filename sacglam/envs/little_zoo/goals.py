"""The goals of Little-Zoo: something to grasp or grow, in a scene of four objects."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from random import Random

from sacglam.envs.little_zoo.world import FOOD, Event, Kind, State, Verb, shortest

NAMES: Mapping[Kind, tuple[str, ...]] = {
    Kind.FURNITURE: ("door", "chair", "desk", "lamp", "table", "cupboard", "sofa", "bookshelf", "bed"),
    Kind.PLANT: ("carrot", "potato", "berry", "lettuce", "tomato", "cucumber", "spinach", "broccoli", "onion"),
    Kind.HERBIVORE: ("cow", "elephant", "rabbit", "deer", "sheep", "giraffe", "goat", "horse", "bison"),
    Kind.CARNIVORE: ("lion", "tiger", "bobcat", "panther", "coyote", "wolf", "leopard", "hyena", "jackal"),
    Kind.WATER: ("water",),
}
KINDS: Mapping[str, Kind] = {name: kind for kind, names in NAMES.items() for name in names}
OBJECTS = 4
"""Objects in a scene, all different."""
_HELD_OUT = 3  # how many names of each kind, the last ones
_AMONG = " among "


@dataclass(frozen=True, slots=True)
class Goal:
    """`Grow deer among door, water, deer, carrot`: a verb, the name of an object, and a scene that contains it."""

    verb: Verb
    name: str
    scene: tuple[str, ...]

    @property
    def text(self) -> str:
        """The goal as the agent reads it."""
        return f"{self.verb.value} {self.name}{_AMONG}{', '.join(self.scene)}"

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of the scene's objects."""
        return tuple(KINDS[name] for name in self.scene)

    @property
    def event(self) -> Event:
        """What must happen."""
        return Event(self.verb, self.scene.index(self.name))

    @property
    def type(self) -> str:
        """`grasp`, `grow_plant`, `grow_herbivore`, `grow_carnivore`, or `impossible` in this scene."""
        if self.verb is Verb.GRASP:
            return "grasp"
        possible = shortest(self.kinds, State(), self.event) is not None
        return f"grow_{KINDS[self.name].value}" if possible else "impossible"

    @property
    def heldout(self) -> bool:
        """Whether the scene has objects that are never trained on."""
        return not set(self.scene) <= set(_pool(heldout=False))


def parse(text: str) -> Goal | None:
    """The goal with this text; None if there is none."""
    what, _, scene = text.partition(_AMONG)
    verb, _, name = what.partition(" ")
    names = tuple(scene.split(", "))
    known = verb in (Verb.GRASP.value, Verb.GROW.value) and name in names and set(names) <= set(KINDS)
    return Goal(Verb(verb), name, names) if known and len(set(names)) == len(names) == OBJECTS else None


@cache
def sampled(counts: tuple[tuple[str, int], ...], heldout: bool) -> tuple[Goal, ...]:
    """So many goals of each type, the same in every process; of held-out objects and water, or of the others."""
    rng = Random(f"little_zoo {heldout}")
    goals: dict[Goal, None] = {}
    for type_, count in counts:
        most = len(goals) + count
        while len(goals) < most:
            goal = _draw(rng, type_, _pool(heldout))
            if goal.type == type_:
                goals[goal] = None
    return tuple(goals)


def _pool(heldout: bool) -> list[str]:
    """The objects of training, or those held out; water is in both."""
    cut = slice(-_HELD_OUT, None) if heldout else slice(None, -_HELD_OUT)
    return [name for kind, names in NAMES.items() if kind is not Kind.WATER for name in names[cut]] + ["water"]


def _draw(rng: Random, type_: str, pool: list[str]) -> Goal:
    """A goal that may be of this type: a growing goal's scene has what it takes."""
    needed: list[str] = []
    kind = Kind(type_.removeprefix("grow_")) if type_.startswith("grow_") else None
    while kind:
        needed.append(rng.choice([name for name in pool if KINDS[name] is kind]))
        kind = FOOD.get(kind)
    scene = needed + rng.sample([name for name in pool if name not in needed], OBJECTS - len(needed))
    target = scene[0]
    rng.shuffle(scene)
    return Goal(Verb.GRASP if type_ == "grasp" else Verb.GROW, target, tuple(scene))
