"""Rows to ranks: nothing lost, nothing twice, equally many micro-batches, and weights that give the batch's mean."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sacglam.algos.sac import with_bootstrap
from sacglam.learner.learner import MicroBatch, micro_batches
from sacglam.types import Observation, Transition

STATE, NEXT = Observation("here", ("stay", "go")), Observation("there", ("stay",))


def row(version: int, terminated: bool = False) -> Transition:
    return Transition("goal", STATE, 1, 0.5, 0.81, terminated, NEXT, "real", version)


def versions(parts: list[MicroBatch]) -> list[list[int]]:
    return [[t.version for t in part.rows] for part in parts]


@given(rows=st.integers(1, 40), world=st.integers(1, 8), size=st.none() | st.integers(1, 12))
def test_shares_partition_the_batch(rows: int, world: int, size: int | None) -> None:
    batch = [row(version) for version in range(rows)]
    ranks = [micro_batches(batch, rank, world, size) for rank in range(world)]
    real = [t.version for parts in ranks for part in parts if part.weight for t in part.rows]
    assert sorted(real) == list(range(rows))
    assert len({len(parts) for parts in ranks}) == 1, "every rank runs as many forwards"
    assert all(part.rows for parts in ranks for part in parts)
    assert all(len(part.rows) <= (size or rows) for parts in ranks for part in parts)
    counts = [sum(len(part.rows) for part in parts if part.weight) for parts in ranks]
    assert max(counts) - min(counts) <= 1
    assert sum(part.weight for parts in ranks for part in parts) == pytest.approx(1)


@given(rows=st.integers(1, 40), world=st.integers(1, 8), size=st.none() | st.integers(1, 12))
def test_weighted_means_add_up_to_the_mean_of_the_batch(rows: int, world: int, size: int | None) -> None:
    batch = [row(version) for version in range(rows)]
    total = 0.0
    for rank in range(world):
        for part in micro_batches(batch, rank, world, size):
            total += part.weight * sum(t.version**2 for t in part.rows) / len(part.rows)
    assert total == pytest.approx(sum(v**2 for v in range(rows)) / rows)


def test_seven_rows_on_two_ranks_by_hand() -> None:
    batch = [row(version) for version in range(7)]
    first, second = micro_batches(batch, 0, 2, 3), micro_batches(batch, 1, 2, 3)
    assert versions(first) == [[0, 2, 4], [6]]
    assert [part.weight for part in first] == [3 / 7, 1 / 7]
    assert versions(second) == [[1, 3, 5], [0]], "the first row fills the place of the one that is missing"
    assert [part.weight for part in second] == [3 / 7, 0.0]


def test_one_rank_takes_the_batch_in_order() -> None:
    batch = [row(version) for version in range(5)]
    assert versions(micro_batches(batch, 0, 1, None)) == [[0, 1, 2, 3, 4]]
    assert versions(micro_batches(batch, 0, 1, 2)) == [[0, 1], [2, 3], [4]]


def test_rows_that_bootstrap_stay_as_they_are() -> None:
    rows = [row(0, terminated=True), row(1)]
    assert with_bootstrap(rows) is rows


def test_without_a_bootstrap_the_first_row_gets_one_that_counts_nothing() -> None:
    rows = [row(0, terminated=True), row(1, terminated=True)]
    expected = replace(rows[0], terminated=False, discount_n=0.0, next_observation=STATE)
    assert with_bootstrap(rows) == [expected, rows[1]]
