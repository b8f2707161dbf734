"""A castle of twelve rooms: three doors are locked, and the key to one may lie behind another."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random

from benchmarks.battery.states import StateEnv

DOORS = {
    "hall": ("kitchen", "chapel", "courtyard", "stairs"),
    "kitchen": ("hall", "pantry"),
    "pantry": ("kitchen",),
    "chapel": ("hall", "crypt"),
    "crypt": ("chapel",),
    "courtyard": ("hall", "stable", "gatehouse"),
    "stable": ("courtyard",),
    "gatehouse": ("courtyard", "armoury"),
    "armoury": ("gatehouse",),
    "stairs": ("hall", "library", "tower"),
    "library": ("stairs",),
    "tower": ("stairs",),
}
KEYS = {"red": "pantry", "blue": "library", "green": "gatehouse"}
LOCKS = {"crypt": "red", "gatehouse": "blue", "tower": "green"}


@dataclass(frozen=True)
class Place:
    """A room, and the keys that the agent carries."""

    room: str
    keys: tuple[str, ...] = ()


class Castle(StateEnv[Place]):
    """Goals read `Enter the crypt` and `Find the red key`. An episode starts in a room that needs no key."""

    def __init__(self, *, max_steps: int = 20) -> None:
        goals = [*(f"Enter the {room}" for room in DOORS), *(f"Find the {key} key" for key in KEYS)]
        super().__init__(goals, (), max_steps)

    def first(self, goal: str, rng: Random) -> Place:
        free = [room for room in DOORS if room not in (*LOCKS, "armoury") and not goal.endswith(room)]
        return Place(rng.choice(free))

    def moves(self, state: Place) -> Mapping[str, Place]:
        moves = {
            f"Go to the {room}": replace(state, room=room)
            for room in DOORS[state.room]
            if LOCKS.get(room) in (None, *state.keys)
        }
        for key, room in KEYS.items():
            if room == state.room and key not in state.keys:
                moves[f"Take the {key} key"] = replace(state, keys=tuple(sorted((*state.keys, key))))
        return moves

    def text(self, state: Place) -> str:
        locked = [f"the door to the {r} needs the {LOCKS[r]} key" for r in DOORS[state.room] if r in LOCKS]
        here = [f"a {key} key" for key, room in KEYS.items() if room == state.room and key not in state.keys]
        lines = [f"You stand in the {state.room}", *locked, f"You see {', '.join(here) or 'nothing here'}"]
        return ". ".join([*lines, f"You carry {', '.join(state.keys) or 'no'} keys"])

    def holds(self, state: Place) -> Iterable[str]:
        return [f"Enter the {state.room}", *(f"Find the {key} key" for key in state.keys)]
