"""From a state to the text that the agent reads. Only this module describes objects."""

from functools import cache

from sacglam.envs.playground.vocabulary import KINDS, Thing
from sacglam.envs.playground.world import GRASP, NOTHING, RELEASE, Kind, State, legal_actions
from sacglam.types import Observation

_ACTION_TEXTS = {GRASP: "Grasp", RELEASE: "Release"}


@cache
def describe(thing: Thing, grown: bool) -> str:
    """`baby red cat` or `green cactus seed` until it has grown, otherwise `colour type`."""
    plain = f"{thing.colour} {thing.type}"
    if grown:
        return plain
    return {Kind.ANIMAL: f"baby {plain}", Kind.PLANT: f"{plain} seed"}.get(KINDS[thing.type], plain)


def observe(scene: tuple[Thing, ...], state: State) -> Observation:
    """The observation of `state` in `scene`; its actions are those of `legal_actions`, in the same order."""
    objects = [describe(thing, bool(state.grown >> slot & 1)) for slot, thing in enumerate(scene)]
    seen = [text for slot, text in enumerate(objects) if slot != state.held]
    on = "nothing" if state.on == NOTHING else objects[state.on]
    held = "empty" if state.held == NOTHING else objects[state.held]
    return Observation(
        text=f"You see: {', '.join(seen) or 'nothing'}\nYou are on: {on}\nInventory: {held}",
        actions=tuple(
            _ACTION_TEXTS.get(action) or f"Go to {objects[action]}"
            for action in legal_actions(len(objects), state.held)
        ),
    )
