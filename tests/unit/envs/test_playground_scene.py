"""Scenes make their goal possible, and texts show them exactly."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacglam.envs.playground import scene
from sacglam.envs.playground.goals import family, goals
from sacglam.envs.playground.text import observe
from sacglam.envs.playground.vocabulary import ANYTHING, KINDS, LIVING, Thing
from sacglam.envs.playground.world import NOTHING, Kind, State, Verb, shortest, works

ALL = family(True)
GOALS = st.sampled_from(goals(True, False)) | st.sampled_from(goals(True, True))


@given(GOALS, st.integers(3, 8), st.integers(0, 2**32))
@settings(deadline=None, max_examples=300)
def test_a_scene_makes_its_goal_possible(text: str, num_objects: int, seed: int) -> None:
    goal = ALL[text]
    things = scene.sample(goal.parts, num_objects, Random(seed))
    assert len(things) == len(set(things)) == num_objects
    for part in goal.parts:
        targets = [thing for thing in things if part.fits(part.verb, thing)]
        assert targets
        if part.verb is Verb.GROW:
            assert any(works(KINDS[supply.type], KINDS[target.type]) for supply in things for target in targets)
    kinds = tuple(KINDS[thing.type] for thing in things)
    length = shortest(kinds, State(), scene.stages(goal.parts, things))
    expected = {"grasp": {2}, "grow": {3}, "grow_then_grasp": {5, 6}, "grow_then_grow": {4}}
    assert length in expected[goal.type]


@given(GOALS, st.integers(0, 2**32))
@settings(deadline=None, max_examples=50)
def test_stages_hold_the_events_that_the_goal_asks_for(text: str, seed: int) -> None:
    goal = ALL[text]
    things = scene.sample(goal.parts, 6, Random(seed))
    for part, events in zip(goal.parts, scene.stages(goal.parts, things), strict=True):
        assert {event.verb for event in events} == {part.verb}
        assert {event.slot for event in events} == {i for i, thing in enumerate(things) if part.name.fits(thing)}


def test_objects_are_drawn_by_category_then_type_then_colour() -> None:
    rng = Random(0)
    drawn = [scene.draw(rng) for _ in range(20_000)]
    types = Counter(KINDS[thing.type] for thing in drawn)
    # Of five category words furniture and supply are one each; living_thing is half animals, half plants.
    expected = {Kind.ANIMAL: 0.3, Kind.PLANT: 0.3, Kind.FURNITURE: 0.2, Kind.FOOD: 0.1, Kind.WATER: 0.1}
    for kind, share in expected.items():
        assert types[kind] / len(drawn) == pytest.approx(share, abs=0.015)
    for count in Counter(thing.colour for thing in drawn).values():
        assert count / len(drawn) == pytest.approx(1 / 3, abs=0.015)


@given(GOALS, st.integers(0, 2**32))
@settings(deadline=None, max_examples=100)
def test_a_drawn_object_answers_to_the_name(text: str, seed: int) -> None:
    for part in ALL[text].parts:
        assert part.name.fits(scene.draw(Random(seed), part.name))
        assert ANYTHING.fits(scene.draw(Random(seed), part.name))


def test_the_goals_object_is_anywhere_in_the_scene() -> None:
    goal = ALL["Grasp red cat"]
    at = Counter(scene.sample(goal.parts, 3, Random(seed)).index(Thing("red", "cat")) for seed in range(3_000))
    assert set(at) == {0, 1, 2}
    assert min(at.values()) > 900


def test_a_supply_already_there_is_not_added_twice() -> None:
    goal = ALL["Grow red cat then grasp blue water"]
    assert set(scene.sample(goal.parts, 2, Random(0))) == {Thing("red", "cat"), Thing("blue", "water")}


def test_food_alone_is_never_all_there_is_for_a_plant() -> None:
    goal = ALL["Grow any tea then grasp any food"]
    for seed in range(50):
        assert {thing.type for thing in scene.sample(goal.parts, 3, Random(seed))} == {"tea", "food", "water"}


SCENE = (Thing("red", "cat"), Thing("blue", "water"), Thing("green", "cactus"))


@pytest.mark.parametrize(
    ("state", "text", "actions"),
    [
        (
            State(),
            "You see: baby red cat, blue water, green cactus seed\nYou are on: nothing\nInventory: empty",
            ("Grasp", "Go to baby red cat", "Go to blue water", "Go to green cactus seed"),
        ),
        (
            State(grown=0b100, on=2, held=1),
            "You see: baby red cat, green cactus\nYou are on: green cactus\nInventory: blue water",
            ("Grasp", "Go to baby red cat", "Go to green cactus", "Release"),
        ),
        (
            State(grown=0b001, held=0),
            "You see: blue water, green cactus seed\nYou are on: nothing\nInventory: red cat",
            ("Grasp", "Go to blue water", "Go to green cactus seed", "Release"),
        ),
    ],
)
def test_states_in_words(state: State, text: str, actions: tuple[str, ...]) -> None:
    observation = observe(SCENE, state)
    assert observation.text == text
    assert observation.actions == actions


def test_a_scene_with_nothing_to_be_seen() -> None:
    observation = observe((Thing("blue", "water"),), State(held=0))
    assert observation.text == "You see: nothing\nYou are on: nothing\nInventory: blue water"
    assert observation.actions == ("Grasp", "Release")


def test_the_text_shows_the_whole_state() -> None:
    living = {type_ for pool in LIVING.values() for type_ in pool}
    growable = [slot for slot, thing in enumerate(SCENE) if thing.type in living]
    masks = [sum(1 << slot for slot in growable if bits >> slot & 1) for bits in range(8)]
    slots = [NOTHING, 0, 1, 2]
    states = {State(m, on, held) for m in masks for on in slots for held in slots if held == NOTHING or on != held}
    assert len({observe(SCENE, state).text for state in states}) == len(states)
