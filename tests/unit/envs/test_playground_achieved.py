"""What is achieved, against an independent account that reads the texts and shares nothing with the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from sacglam.envs import TextEnv
from sacglam.envs.playground import Playground
from sacglam.types import Observation, Step

Play = Callable[[TextEnv, str, int, Sequence[int]], tuple[Observation, list[Step]]]
FULL = Playground(size="full", max_steps=60)

ANIMALS = {"dog", "cat", "chameleon", "human", "fly", "parrot", "mouse", "lion", "pig", "cow"}
PLANTS = {"cactus", "carnivorous", "flower", "tree", "bush", "grass", "algae", "tea", "rose", "bonsai"}


def events(start: Observation, steps: list[Step], picks: Sequence[int]) -> list[tuple[str, str] | None]:
    """What happened at each step, read from the texts alone."""
    found: list[tuple[str, str] | None] = []
    for before, step, pick in zip([start, *(s.observation for s in steps)], steps, picks, strict=False):
        action = before.actions[pick % len(before.actions)]
        held = before.text.splitlines()[2].removeprefix("Inventory: ")
        now_held = step.observation.text.splitlines()[2].removeprefix("Inventory: ")
        target = action.removeprefix("Go to ").removeprefix("baby ").removesuffix(" seed")
        supply, type_ = held.split()[-1], target.split()[-1]
        if action == "Grasp":
            thing = now_held.removeprefix("baby ").removesuffix(" seed")
            found.append(("Grasp", thing) if held == "empty" and now_held != "empty" else None)
        elif (supply == "water" and type_ in ANIMALS | PLANTS) or (supply == "food" and type_ in ANIMALS):
            found.append(("Grow", target))
        else:
            found.append(None)
    return found


def names_of(thing: str) -> set[str]:
    """The names of an object such as `red cat`."""
    colour, type_ = thing.split()
    words = [type_]
    if type_ in ANIMALS:
        words += ["animal", "living_thing"]
    elif type_ in PLANTS:
        words += ["plant", "living_thing"]
    else:
        words += ["supply" if type_ in ("food", "water") else "furniture"]
    return {f"any {colour} thing", *(f"{first} {word}" for first in (colour, "any") for word in words)}


SPLIT = {text: text.replace("then g", "then G").split(" then ") for text in FULL.goals("train")}
GOALS = st.sampled_from(FULL.goals("train")) | st.sampled_from(FULL.goals("heldout"))


@given(GOALS, st.integers(0, 2**32), st.lists(st.integers(0, 6), max_size=60))
@settings(deadline=None, max_examples=60)
def test_achieved_is_what_the_texts_say_happened(play: Play, goal: str, seed: int, picks: list[int]) -> None:
    start, steps = play(FULL, goal, seed, picks)
    earlier: set[str] = set()
    said: set[str] = set()
    space = {**SPLIT, goal: goal.replace("then g", "then G").split(" then ")}
    for event, step in zip(events(start, steps, picks), steps, strict=True):
        now = {f"{event[0]} {name}" for name in names_of(event[1])} if event else set()
        achieved = {text for text, (*first, last) in space.items() if last in now and earlier.issuperset(first)}
        assert set(step.achieved) == achieved - said
        said |= achieved
        earlier |= now
