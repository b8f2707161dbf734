"""Sample a scene in which a goal is possible."""

from collections.abc import Sequence
from random import Random

from sacglam.envs.playground.goals import Single
from sacglam.envs.playground.vocabulary import ANYTHING, COLOURS, KINDS, SUPPLIES, Name, Thing
from sacglam.envs.playground.world import Event, Stages, Verb, works


def draw(rng: Random, name: Name = ANYTHING) -> Thing:
    """An object that answers to `name`: a pool (category) uniformly, then a type in it, then a colour."""
    type_ = rng.choice(rng.choice(name.pools))
    return Thing(rng.choice(name.colours), type_)


def sample(parts: Sequence[Single], num_objects: int, rng: Random) -> tuple[Thing, ...]:
    """Draw objects, no two alike in colour and type, with which a goal of these parts is possible, in random order.

    One object may serve both parts of a sequential goal, if it was drawn for both, and the object of a Grasp part may
    be the supply of the Grow part, if it works.
    """
    targets = [draw(rng, part.name) for part in parts]
    scene = set(targets)
    to_grow = [thing for part, thing in zip(parts, targets, strict=True) if part.verb is Verb.GROW]
    if to_grow and not any(_grows_all(thing.type, to_grow) for thing in targets):
        supplies = [supply for supply in SUPPLIES if _grows_all(supply, to_grow)]
        scene.add(Thing(rng.choice(COLOURS), rng.choice(supplies)))
    while len(scene) < num_objects:
        scene.add(draw(rng))
    ordered = sorted(scene)  # the order of a set depends on the process's hash seed
    rng.shuffle(ordered)
    return tuple(ordered)


def stages(parts: Sequence[Single], scene: tuple[Thing, ...]) -> Stages:
    """The events in `scene` that achieve each part."""
    return tuple(
        frozenset(Event(part.verb, slot) for slot, thing in enumerate(scene) if part.fits(part.verb, thing))
        for part in parts
    )


def _grows_all(supply: str, targets: list[Thing]) -> bool:
    return all(works(KINDS[supply], KINDS[target.type]) for target in targets)
