"""A workshop: gather materials in three places, and make things from them at the bench and in the forge."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random

from benchmarks.battery.states import StateEnv

MATERIALS = {"forest": ("wood", "flax"), "hills": ("ore", "stone"), "river": ("clay", "reed")}
RECIPES = {
    "bench": {
        "pole": ("wood",),
        "rope": ("flax",),
        "basket": ("reed",),
        "ladder": ("pole", "rope"),
        "net": ("rope", "stone"),
        "trap": ("basket", "net"),
        "knife": ("blade", "rope"),
    },
    "forge": {
        "charcoal": ("wood",),
        "brick": ("clay",),
        "oven": ("brick", "stone"),
        "iron": ("charcoal", "ore"),
        "blade": ("iron", "stone"),
    },
}
PLACES = (*MATERIALS, *RECIPES)


@dataclass(frozen=True)
class Scene:
    """Where the agent is, and the things in its bag, at most one of each kind."""

    place: str
    bag: frozenset[str] = frozenset()


class Workshop(StateEnv[Scene]):
    """Goals read `Take flax` and `Make a ladder`. Making uses up what the thing is made of."""

    def __init__(self, *, max_steps: int = 15) -> None:
        taken = [take(thing) for things in MATERIALS.values() for thing in things]
        made = [make(thing) for recipes in RECIPES.values() for thing in recipes]
        super().__init__([*taken, *made], (), max_steps)

    def first(self, goal: str, rng: Random) -> Scene:
        return Scene(rng.choice(PLACES))

    def moves(self, state: Scene) -> Mapping[str, Scene]:
        moves = {f"Walk to the {place}": replace(state, place=place) for place in PLACES if place != state.place}
        for thing in MATERIALS.get(state.place, ()):
            if thing not in state.bag:
                moves[take(thing)] = replace(state, bag=state.bag | {thing})
        for thing, parts in RECIPES.get(state.place, {}).items():
            if state.bag.issuperset(parts) and thing not in state.bag:
                moves[make(thing)] = replace(state, bag=state.bag - set(parts) | {thing})
        return moves

    def text(self, state: Scene) -> str:
        return f"You are at the {state.place}.\nIn your bag: {', '.join(sorted(state.bag)) or 'nothing'}."

    def holds(self, state: Scene) -> Iterable[str]:
        materials = {thing for things in MATERIALS.values() for thing in things}
        return [take(thing) if thing in materials else make(thing) for thing in sorted(state.bag)]


def take(material: str) -> str:
    return f"Take {material}"


def make(thing: str) -> str:
    return f"Make {thing}"
