"""The goal space: its counts, the names of objects, what is held out, and what is no goal."""

from __future__ import annotations

from collections import Counter

import pytest

from sacglam.envs.playground import Playground
from sacglam.envs.playground.goals import family, goals, pairs, singles, texts, trained_on
from sacglam.envs.playground.vocabulary import CATEGORIES, COLOURS, LIVING, Thing, names
from sacglam.envs.playground.world import Verb
from sacglam.errors import ConfigError


def test_there_are_151_names_to_grasp_and_95_to_grow() -> None:
    assert len(names(CATEGORIES)) == len(set(names(CATEGORIES))) == 151
    assert len(names(LIVING)) == len(set(names(LIVING))) == 95


def test_counts_are_the_papers() -> None:
    count = Counter(family(True)[text].type for text in goals(True, False))
    assert count == {"grasp": 136, "grow": 46, "grow_then_grasp": 6_218, "grow_then_grow": 2_070}
    assert count.total() == 8_470
    sequential = count["grow_then_grasp"] + count["grow_then_grow"]
    assert round(100 * sequential / count.total(), 2) == 97.85


def test_held_out_counts_and_no_overlap() -> None:
    assert Counter(family(False)[text].type for text in goals(False, True)) == {"grasp": 15, "grow": 49}
    assert len(goals(True, True)) == 14_956
    everything = goals(True, False) + goals(True, True)
    assert len(set(everything)) == len(everything)
    assert goals(False, False) == goals(True, False)[:182]


@pytest.mark.parametrize(
    ("thing", "expected"),
    [
        (
            Thing("red", "cat"),
            "red cat|any cat|red animal|any animal|red living_thing|any living_thing|any red thing",
        ),
        (
            Thing("green", "cactus"),
            "green cactus|any cactus|green plant|any plant|green living_thing|any living_thing|any green thing",
        ),
        (Thing("blue", "door"), "blue door|any door|blue furniture|any furniture|any blue thing"),
        (Thing("red", "water"), "red water|any water|red supply|any supply|any red thing"),
    ],
)
def test_names_of_an_object_by_hand(thing: Thing, expected: str) -> None:
    assert {name.text for name in names(CATEGORIES) if name.fits(thing)} == set(expected.split("|"))


def test_sequential_goals_of_growing_a_cactus_then_grasping_water_by_hand() -> None:
    # Of a cactus only `Grow any green thing` is trained on.
    grasp = ["green water", "green supply", "any water", "any supply"]
    expected = [f"Grow any green thing then grasp {name}" for name in grasp]
    assert list(texts(Verb.GRASP, Thing("green", "water"), Thing("green", "cactus"))) == expected


def test_held_out_singles_follow_the_rule_written_out() -> None:
    plants = {"cactus", "carnivorous", "flower", "tree", "bush", "grass", "algae", "tea", "rose", "bonsai"}
    for single in singles():
        words = single.text.split()
        heldout = any(phrase in single.text for phrase in ("red tree", "green dog", "blue door")) or "flower" in words
        if words[0] == "Grasp":
            heldout |= words[-1] in {"animal", "fly"}
        else:
            heldout |= words[-1] in plants | {"plant", "living_thing"}
        assert single.heldout == heldout, single.text


def test_pairs_follow_the_rule_written_out() -> None:
    for first in singles():
        for second in singles():
            a, b = first.text.split(), second.text.split()
            assert pairs(first, second) == (a[0] == "Grow" and (a[-1] != b[-1] or a[-2] != b[-2]))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Grasp",
        "grasp red cat",
        "Grasp purple cat",
        "Grow red door",
        "Grow any cat then",
        "Grow any cat then Grasp red dog",
        "Grow any cat then grasp any cat",
        "Grasp any cat then grow red dog",
        "Grow red cat then grow red dog then grasp any water",
    ],
)
def test_what_is_no_goal_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a goal of playground"):
        Playground().goal_type(text)


def test_the_nearest_goal_is_named() -> None:
    with pytest.raises(ConfigError, match="expected one like 'Grasp red cat'"):
        Playground().goal_type("Grasp red ct")


def test_each_training_single_is_described_for_some_object() -> None:
    things = [Thing(colour, type_) for pool in CATEGORIES.values() for type_ in pool for colour in COLOURS]
    for verb in Verb:
        living = {type_ for pool in LIVING.values() for type_ in pool}
        happens_to = [thing for thing in things if verb is Verb.GRASP or thing.type in living]
        described = {single.text for thing in happens_to for single in trained_on(verb, thing)}
        assert described == {single.text for single in singles() if single.verb is verb and not single.heldout}
