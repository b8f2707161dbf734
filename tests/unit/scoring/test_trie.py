"""Actions as a trie of tokens."""

from __future__ import annotations

import pytest

from sacglam.scoring.vllm.strategies import by_node, by_path, edges_of, log_prob

ACTIONS = [(5, 7, 9), (5, 7, 8), (5,), (6, 7)]


def test_every_edge_is_listed_once_and_in_order() -> None:
    assert edges_of(ACTIONS) == [(5,), (5, 7), (5, 7, 9), (5, 7, 8), (6,), (6, 7)]


def test_paths_cover_every_edge_once() -> None:
    assert by_path(edges_of(ACTIONS)) == [((5,), (5, 7), (5, 7, 9)), ((5, 7, 8),), ((6,), (6, 7))]


def test_paths_of_some_edges_leave_out_the_others() -> None:
    assert by_path([(5,), (5, 7, 9)]) == [((5,), (5, 7, 9))]
    assert by_path([]) == []


def test_edges_are_grouped_by_the_node_that_they_leave() -> None:
    assert by_node(edges_of(ACTIONS), limit=128) == [((5,), (6,)), ((5, 7),), ((5, 7, 9), (5, 7, 8)), ((6, 7),)]


def test_a_node_with_many_children_has_several_groups() -> None:
    assert by_node([(token,) for token in range(5)], limit=2) == [((0,), (1,)), ((2,), (3,)), ((4,),)]


def test_an_action_sums_along_its_path() -> None:
    scores = {(5,): -1.0, (5, 7): -0.5, (5, 7, 9): -0.25, (6,): -8.0}
    assert log_prob((5, 7, 9), scores) == pytest.approx(-1.75)
    assert log_prob((6,), scores) == -8.0
