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


class Narrator:
    """Observations of one scene's states, cached because an episode returns to its states."""

    def __init__(self, scene: tuple[Thing, ...]) -> None:
        self._scene = scene
        self._cache: dict[State, Observation] = {}

    def observe(self, state: State) -> Observation:
        """The observation of `state`; its actions are those of `legal_actions`, in the same order."""
        if state not in self._cache:
            self._cache[state] = self._compose(state)
        return self._cache[state]

    def _compose(self, state: State) -> Observation:
        objects = [describe(thing, bool(state.grown >> slot & 1)) for slot, thing in enumerate(self._scene)]
        seen = [text for slot, text in enumerate(objects) if slot != state.held]
        on = "nothing" if state.on == NOTHING else objects[state.on]
        held = "empty" if state.held == NOTHING else objects[state.held]
        return Observation(
            text=f"You see: {', '.join(seen) or 'nothing'}\nYou are on: {on}\nInventory: {held}",
            actions=tuple(
                _ACTION_TEXTS.get(action) or f"Go to {objects[action]}" for action in legal_actions(len(objects), state)
            ),
        )
