"""Actions as a trie of tokens."""

from __future__ import annotations

import pytest

from sacglam.scoring.vllm.trie import edges, leaves, log_prob, nodes

ACTIONS = [(5, 7, 9), (5, 7, 8), (5,), (6, 7)]


def test_every_edge_is_listed_once_and_in_order() -> None:
    assert edges(ACTIONS) == [(5,), (5, 7), (5, 7, 9), (5, 7, 8), (6,), (6, 7)]


def test_leaves_pass_every_edge_and_bring_none_twice() -> None:
    assert leaves(edges(ACTIONS)) == {
        (5, 7, 9): [(5,), (5, 7), (5, 7, 9)],
        (5, 7, 8): [(5, 7, 8)],
        (6, 7): [(6,), (6, 7)],
    }


def test_leaves_of_some_edges_leave_out_what_is_known() -> None:
    assert leaves([(5,), (5, 7, 9)]) == {(5, 7, 9): [(5,), (5, 7, 9)]}
    assert leaves([]) == {}


def test_nodes_group_the_edges_that_leave_them() -> None:
    assert nodes(edges(ACTIONS), most=128) == [((5,), (6,)), ((5, 7),), ((5, 7, 9), (5, 7, 8)), ((6, 7),)]


def test_a_node_with_many_children_is_asked_in_parts() -> None:
    assert nodes([(token,) for token in range(5)], most=2) == [((0,), (1,)), ((2,), (3,)), ((4,),)]


def test_an_action_sums_along_its_path() -> None:
    scores = {(5,): -1.0, (5, 7): -0.5, (5, 7, 9): -0.25, (6,): -8.0}
    assert log_prob((5, 7, 9), scores) == pytest.approx(-1.75)
    assert log_prob((6,), scores) == -8.0
