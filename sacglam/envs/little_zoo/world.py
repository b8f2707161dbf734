"""The rules of Little-Zoo without any text: states, actions, transitions, events, and an exact planner.

A scene is a tuple of kinds, one per slot; the rules do not know names.
"""

from enum import Enum
from functools import cache
from typing import NamedTuple

NOTHING = -1
"""The value of `State.on` without an object."""
INVENTORY = 2
"""Most objects that the agent holds."""


class Kind(Enum):
    """What an object is to the rules."""

    FURNITURE = "furniture"
    PLANT = "plant"
    HERBIVORE = "herbivore"
    CARNIVORE = "carnivore"
    WATER = "water"


FOOD = {Kind.PLANT: Kind.WATER, Kind.HERBIVORE: Kind.PLANT, Kind.CARNIVORE: Kind.HERBIVORE}
"""What each kind needs to grow. Plants and animals must themselves have grown to be food."""


class Verb(Enum):
    """What an action does, and what can happen to an object; the values are the words of actions and goals."""

    GO = "Go to"
    GRASP = "Grasp"
    RELEASE = "Release"
    GROW = "Grow"


class Action(NamedTuple):
    """Go to the object in `slot`, release it, or grasp the one under the agent."""

    verb: Verb
    slot: int = NOTHING


class State(NamedTuple):
    """A state; the sets of slots are in ascending order."""

    grown: tuple[int, ...] = ()
    eaten: tuple[int, ...] = ()
    """Food that is used up."""
    held: tuple[int, ...] = ()
    on: int = NOTHING
    """The slot of the object the agent is on."""


class Event(NamedTuple):
    """`GRASP` or `GROW` happened to the object in `slot`."""

    verb: Verb
    slot: int


def around(objects: int, state: State) -> list[int]:
    """The slots of the objects that are on the ground."""
    return [slot for slot in range(objects) if slot not in state.held and slot not in state.eaten]


def legal_actions(objects: int, state: State) -> list[Action]:
    """Grasp, go to each object on the ground, release each that is held."""
    going = [Action(Verb.GO, slot) for slot in around(objects, state)]
    return [Action(Verb.GRASP), *going, *(Action(Verb.RELEASE, slot) for slot in state.held)]


def transition(kinds: tuple[Kind, ...], state: State, action: Action) -> tuple[State, Event | None]:
    """The next state, and what happened if anything did. `action` must be legal in `state`.

    Food that is released on what needs it makes that grow, and is gone; anything else is put down, under the agent.
    """
    verb, slot = action
    if verb is Verb.GO:
        return state._replace(on=slot), None
    if verb is Verb.GRASP:
        if state.on == NOTHING or len(state.held) == INVENTORY:
            return state, None
        return state._replace(held=_with(state.held, state.on), on=NOTHING), Event(Verb.GRASP, state.on)
    held = tuple(each for each in state.held if each != slot)
    if not _feeds(kinds, state, slot):
        return state._replace(held=held, on=slot), None
    grown, eaten = _with(state.grown, state.on), _with(state.eaten, slot)
    return State(grown, eaten, held, state.on), Event(Verb.GROW, state.on)


def _feeds(kinds: tuple[Kind, ...], state: State, slot: int) -> bool:
    """Whether the object under the agent grows from the one in `slot`; only once, as a scene has one water at most."""
    fits = state.on != NOTHING and FOOD.get(kinds[state.on]) is kinds[slot]
    return fits and (kinds[slot] is Kind.WATER or slot in state.grown)


def _with(slots: tuple[int, ...], slot: int) -> tuple[int, ...]:
    return tuple(sorted((*slots, slot)))


@cache
def shortest(kinds: tuple[Kind, ...], state: State, wanted: Event) -> int | None:
    """The fewest actions from `state` until `wanted` happens, by breadth-first search; None if it cannot any more."""
    frontier, visited, length = [state], {state}, 0
    while frontier:
        length += 1
        reached = []
        for here in frontier:
            for action in legal_actions(len(kinds), here):
                there, event = transition(kinds, here, action)
                if event == wanted:
                    return length
                if there not in visited:
                    visited.add(there)
                    reached.append(there)
        frontier = reached
    return None
