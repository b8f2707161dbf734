"""The rules of Playground without any text: states, actions, transitions, events, and an exact planner.

A scene is a tuple of kinds, one per slot. Colours and types only matter to names (paper, Appendix A), so the rules do
not know them.
"""

from enum import IntEnum
from functools import cache
from typing import NamedTuple, TypeAlias

NOTHING = -1
"""The value of `State.on` or `State.held` without an object."""

Action: TypeAlias = int
"""`GRASP`, `RELEASE`, or a slot to go to."""

GRASP: Action = -1
RELEASE: Action = -2


class Kind(IntEnum):
    """What an object is to the rules."""

    FURNITURE = 0
    FOOD = 1
    WATER = 2
    ANIMAL = 3
    PLANT = 4


class Verb(IntEnum):
    """What can happen to an object."""

    GRASP = 0
    GROW = 1


class State(NamedTuple):
    """A state; a tuple, since planning and rendering hash it at every step."""

    grown: int = 0
    """Bit i is set if the object in slot i has grown."""
    on: int = NOTHING
    """The slot of the object the agent is on."""
    held: int = NOTHING
    """The slot of the object in the agent's hand."""


class Event(NamedTuple):
    """Something that happened to the object in `slot`."""

    verb: Verb
    slot: int


Stages: TypeAlias = tuple[frozenset[Event], ...]
"""A goal as the planner sees it: one event of each set must happen, in this order and at different steps."""

_GROWS = frozenset({(Kind.WATER, Kind.PLANT), (Kind.WATER, Kind.ANIMAL), (Kind.FOOD, Kind.ANIMAL)})


def works(supply: Kind, target: Kind) -> bool:
    """Whether holding `supply` grows `target`: water grows plants and animals, food animals only (Section 3)."""
    return (supply, target) in _GROWS


@cache
def legal_actions(num_objects: int, held: int) -> tuple[Action, ...]:
    """The N + 1 actions of a state: grasp, go to each object that is not `held`, release if one is held."""
    go_to = tuple(slot for slot in range(num_objects) if slot != held)
    return (GRASP, *go_to) if held == NOTHING else (GRASP, *go_to, RELEASE)


def transition(kinds: tuple[Kind, ...], state: State, action: Action) -> tuple[State, Event | None]:
    """The next state, and what happened if anything did. `action` must be legal in `state`.

    Going to an object counts even if the agent is on it, and growing even if it has grown, so no state is a dead end.
    """
    grown, on, held = state
    if action == GRASP:
        if on == NOTHING or held != NOTHING:
            return state, None
        return State(grown, NOTHING, on), Event(Verb.GRASP, on)
    if action == RELEASE:
        return State(grown, held, NOTHING), None
    if held != NOTHING and works(kinds[held], kinds[action]):
        return State(grown | 1 << action, action, held), Event(Verb.GROW, action)
    return State(grown, action, held), None


def shortest(kinds: tuple[Kind, ...], state: State, stages: Stages) -> int | None:
    """The fewest actions from `state` that pass all `stages`; None if they cannot be passed.

    Breadth-first, hence exact. No rule reads `State.grown`, so states that differ only in it are one node: there are
    at most (N + 1)^2 nodes per stage, not 2^N times as many.
    """
    frontier = [(state._replace(grown=0), 0)] if stages else []
    visited = set(frontier)
    length = 0
    while frontier:
        length += 1
        reached = []
        for here, stage in frontier:
            for action in legal_actions(len(kinds), here.held):
                there, event = transition(kinds, here, action)
                passed = stage + (event in stages[stage])
                if passed == len(stages):
                    return length
                node = (there._replace(grown=0), passed)
                if node not in visited:
                    visited.add(node)
                    reached.append(node)
        frontier = reached
    return None if stages else 0
