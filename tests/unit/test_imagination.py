"""Imagined goals: by hand, always new, and the same whenever the known goals are the same."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sacglam.envs.playground import goals
from sacglam.imagination import Imagination

KNOWN = dict.fromkeys(["Grasp red cat", "Grow red cat", "Grow any bug"])


def drawn(known: dict[str, None], most: int = 64, seed: int = 0) -> list[str]:
    return Imagination().draw(known, most, np.random.default_rng(seed))


def test_a_word_gives_way_to_one_that_stands_in_its_place() -> None:
    assert drawn(KNOWN) == ["Grasp any bug"]  # `bug` and `cat` never stand in the same place
    found = drawn(KNOWN | {"Grow any cat": None})
    assert sorted(found) == ["Grasp any bug", "Grasp any cat", "Grasp red bug", "Grow red bug"]


def test_nothing_is_imagined_of_nothing_and_no_more_than_is_wanted() -> None:
    assert drawn({}) == drawn({"Reach the end": None}) == drawn(KNOWN, 0) == []
    assert len(drawn(dict.fromkeys(goals.goals(False, False)), 5)) == 5


@given(st.lists(st.text("ab ", max_size=5), unique=True), st.integers(0, 20))
def test_imagined_goals_are_new_and_differ(known: list[str], seed: int) -> None:
    found = drawn(dict.fromkeys(known), seed=seed)
    assert not {*found} & {*known}
    assert len({*found}) == len(found)


def test_goals_learnt_bit_by_bit_give_what_they_give_at_once() -> None:
    known, imagination = dict[str, None](), Imagination()
    for goal in goals.goals(False, False):
        known[goal] = None
        imagination.draw(known, 1, np.random.default_rng(0))
    assert imagination.draw(known, 64, np.random.default_rng(1)) == drawn(known, seed=1)


def test_most_held_out_goals_of_the_simple_game_can_be_imagined() -> None:
    found = drawn(dict.fromkeys(goals.goals(False, False)), 2000)
    possible = {*found} & {*goals.goals(False, True)}
    assert (len(found), len(possible)) == (132, 56)  # but `flower`, which no goal has, cannot
