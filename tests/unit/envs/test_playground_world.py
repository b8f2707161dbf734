"""The rules: each by hand, then the planner against a brute force that knows nothing of its shortcut."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacglam.envs.playground.world import (
    GRASP,
    NOTHING,
    RELEASE,
    Event,
    Kind,
    Stages,
    State,
    Verb,
    legal_actions,
    shortest,
    transition,
    works,
)

KINDS = (Kind.WATER, Kind.PLANT, Kind.ANIMAL, Kind.FOOD, Kind.FURNITURE)
WATER, PLANT, ANIMAL, FOOD, DOOR = range(5)


def test_water_grows_plants_and_animals_and_food_animals_only() -> None:
    assert {pair for pair in product(Kind, Kind) if works(*pair)} == {
        (Kind.WATER, Kind.PLANT),
        (Kind.WATER, Kind.ANIMAL),
        (Kind.FOOD, Kind.ANIMAL),
    }


@pytest.mark.parametrize(
    ("state", "action", "expected", "event"),
    [
        (State(), PLANT, State(on=PLANT), None),
        (State(on=PLANT), GRASP, State(held=PLANT), Event(Verb.GRASP, PLANT)),
        (State(), GRASP, State(), None),
        (State(on=PLANT, held=WATER), GRASP, State(on=PLANT, held=WATER), None),
        (State(on=PLANT, held=WATER), RELEASE, State(on=WATER), None),
        (State(held=WATER), PLANT, State(1 << PLANT, PLANT, WATER), Event(Verb.GROW, PLANT)),
        (State(held=WATER), ANIMAL, State(1 << ANIMAL, ANIMAL, WATER), Event(Verb.GROW, ANIMAL)),
        (State(held=FOOD), ANIMAL, State(1 << ANIMAL, ANIMAL, FOOD), Event(Verb.GROW, ANIMAL)),
        (State(held=FOOD), PLANT, State(0, PLANT, FOOD), None),
        (State(held=WATER), DOOR, State(0, DOOR, WATER), None),
        (State(held=WATER), FOOD, State(0, FOOD, WATER), None),
        (State(held=PLANT), ANIMAL, State(0, ANIMAL, PLANT), None),
        # Growing the grown, and arriving where one is already: events too.
        (State(1 << PLANT, PLANT, WATER), PLANT, State(1 << PLANT, PLANT, WATER), Event(Verb.GROW, PLANT)),
    ],
)
def test_a_transition_by_hand(state: State, action: int, expected: State, event: Event | None) -> None:
    assert action in legal_actions(len(KINDS), state.held)
    assert transition(KINDS, state, action) == (expected, event)


def test_legal_actions_by_hand() -> None:
    assert legal_actions(3, NOTHING) == (GRASP, 0, 1, 2)
    assert legal_actions(3, 1) == (GRASP, 0, 2, RELEASE)


def stage(verb: Verb, *slots: int) -> frozenset[Event]:
    return frozenset(Event(verb, slot) for slot in slots)


@pytest.mark.parametrize(
    ("state", "stages", "expected"),
    [
        (State(), (), 0),
        (State(), (stage(Verb.GRASP, DOOR),), 2),
        (State(on=DOOR), (stage(Verb.GRASP, DOOR),), 1),
        (State(held=DOOR), (stage(Verb.GRASP, DOOR),), 2),  # release, grasp
        (State(held=DOOR), (stage(Verb.GRASP, WATER),), 3),  # release, go to, grasp
        (State(), (stage(Verb.GROW, PLANT),), 3),  # go to water, grasp, go to plant
        (State(on=PLANT, held=WATER), (stage(Verb.GROW, PLANT),), 1),
        (State(held=FOOD), (stage(Verb.GROW, PLANT),), 4),  # release, go to water, grasp, go to plant
        (State(held=FOOD), (stage(Verb.GROW, PLANT, ANIMAL),), 1),
        (State(), (stage(Verb.GROW, PLANT), stage(Verb.GRASP, DOOR)), 6),
        (State(), (stage(Verb.GROW, PLANT), stage(Verb.GRASP, WATER)), 5),
        (State(), (stage(Verb.GROW, PLANT), stage(Verb.GROW, ANIMAL)), 4),
        (State(), (stage(Verb.GROW, PLANT), stage(Verb.GROW, PLANT)), 4),  # one event serves one stage
        (State(), (stage(Verb.GROW, DOOR),), None),
        (State(), (stage(Verb.GRASP),), None),
    ],
)
def test_shortest_by_hand(state: State, stages: Stages, expected: int | None) -> None:
    assert shortest(KINDS, state, stages) == expected


def brute_force(kinds: tuple[Kind, ...], state: State, stages: Stages) -> int | None:
    """Breadth-first over whole states, growth and all, keeping the events of every path."""
    if not stages:
        return 0
    layer = {(state, stages)}
    seen = set(layer)
    length = 0
    while layer:
        length += 1
        following = set()
        for here, left in layer:
            for action in legal_actions(len(kinds), here.held):
                there, event = transition(kinds, here, action)
                now_left = left[1:] if event in left[0] else left
                if not now_left:
                    return length
                following.add((there, now_left))
        layer = following - seen
        seen |= layer
    return None


@st.composite
def problems(draw: st.DrawFn) -> tuple[tuple[Kind, ...], State, Stages]:
    kinds = tuple(draw(st.lists(st.sampled_from(Kind), min_size=2, max_size=4)))
    slots = st.integers(0, len(kinds) - 1)
    events = st.frozensets(st.builds(Event, st.sampled_from(Verb), slots), max_size=2)
    held = draw(st.one_of(st.just(NOTHING), slots))
    on = draw(st.one_of(st.just(NOTHING), slots.filter(lambda slot: slot != held)))
    grown = draw(st.integers(0, (1 << len(kinds)) - 1))
    return kinds, State(grown, on, held), tuple(draw(st.lists(events, max_size=2)))


@given(problems())
@settings(deadline=None, max_examples=200)
def test_shortest_equals_brute_force(problem: tuple[tuple[Kind, ...], State, Stages]) -> None:
    assert shortest(*problem) == brute_force(*problem)


@given(problems())
@settings(deadline=None, max_examples=200)
def test_one_action_saves_at_most_one_step_and_some_action_saves_one(
    problem: tuple[tuple[Kind, ...], State, Stages],
) -> None:
    kinds, state, stages = problem
    length = shortest(kinds, state, stages)
    if not length:
        return
    after = []
    for action in legal_actions(len(kinds), state.held):
        there, event = transition(kinds, state, action)
        left = shortest(kinds, there, stages[1:] if event in stages[0] else stages)
        assert left is not None, "a dead end"
        after.append(left)
    assert min(after) == length - 1


@given(problems(), st.lists(st.integers(0, 100), max_size=20))
@settings(deadline=None, max_examples=100)
def test_states_stay_sound(problem: tuple[tuple[Kind, ...], State, Stages], picks: list[int]) -> None:
    kinds, state, _ = problem
    for pick in picks:
        actions = legal_actions(len(kinds), state.held)
        assert len(actions) == len(set(actions)) == len(kinds) + 1
        before = state
        state, event = transition(kinds, state, actions[pick % len(actions)])
        assert before.grown & ~state.grown == 0, "nothing shrinks"
        assert state.held == NOTHING or state.held != state.on
        if event is not None and event.verb is Verb.GROW:
            assert kinds[event.slot] in (Kind.ANIMAL, Kind.PLANT)
