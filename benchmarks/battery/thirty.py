"""A courier in a town of thirty addresses: every state has thirty actions, of which few matter."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random

from benchmarks.battery.states import StateEnv

ADDRESSES = (
    *("bakery", "bank", "barber", "bookshop", "brewery", "butcher", "chapel", "chemist", "cinema", "college"),
    *("dairy", "dentist", "florist", "garage", "grocer", "harbour", "hospital", "hotel", "library", "market"),
    *("mill", "museum", "nursery", "observatory", "police", "school", "stadium", "station", "theatre", "zoo"),
)


@dataclass(frozen=True)
class Town:
    """Where the courier and the parcel are; the parcel's place is None while the courier carries it."""

    courier: str
    parcel: str | None


class Courier(StateEnv[Town]):
    """Goals read `Visit the mill` and `Deliver to the mill`; a fifth of the deliveries is held out."""

    def __init__(self, *, max_steps: int = 10) -> None:
        deliveries = [f"Deliver to the {place}" for place in ADDRESSES]
        heldout = deliveries[4::5]
        visits = [f"Visit the {place}" for place in ADDRESSES]
        super().__init__([*visits, *(goal for goal in deliveries if goal not in heldout)], heldout, max_steps)

    def first(self, goal: str, rng: Random) -> Town:
        return Town(*rng.sample([place for place in ADDRESSES if not goal.endswith(place)], 2))

    def moves(self, state: Town) -> Mapping[str, Town]:
        moves = {f"Ride to the {place}": replace(state, courier=place) for place in ADDRESSES if place != state.courier}
        if state.parcel is None:
            return moves | {"Leave the parcel": replace(state, parcel=state.courier)}
        if state.parcel == state.courier:
            return moves | {"Load the parcel": replace(state, parcel=None)}
        return moves | {"Ring the bell": state}

    def text(self, state: Town) -> str:
        parcel = "on your bicycle" if state.parcel is None else f"at the {state.parcel}"
        return f"You are at the {state.courier}. The parcel is {parcel}."

    def holds(self, state: Town) -> Iterable[str]:
        delivered = [] if state.parcel is None else [f"Deliver to the {state.parcel}"]
        return [f"Visit the {state.courier}", *delivered]
