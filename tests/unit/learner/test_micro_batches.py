"""Rows to ranks: nothing lost, nothing twice, equally many micro-batches, and weights that give the batch's mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sacglam.learner.learner import MicroBatch, micro_batches


def numbers(parts: list[MicroBatch]) -> list[list[int]]:
    return [list(part.rows) for part in parts]


@given(rows=st.integers(1, 40), world=st.integers(1, 8), size=st.none() | st.integers(1, 12))
def test_shares_partition_the_batch(rows: int, world: int, size: int | None) -> None:
    batch = range(rows)
    ranks = [micro_batches(batch, rank, world, size) for rank in range(world)]
    real = [v for parts in ranks for part in parts if part.weight for v in part.rows]
    assert sorted(real) == list(range(rows))
    assert len({len(parts) for parts in ranks}) == 1, "every rank runs as many forwards"
    assert all(part.rows for parts in ranks for part in parts)
    assert all(len(part.rows) <= (size or rows) for parts in ranks for part in parts)
    counts = [sum(len(part.rows) for part in parts if part.weight) for parts in ranks]
    assert max(counts) - min(counts) <= 1
    assert sum(part.weight for parts in ranks for part in parts) == pytest.approx(1)


@given(rows=st.integers(1, 40), world=st.integers(1, 8), size=st.none() | st.integers(1, 12))
def test_weighted_means_add_up_to_the_mean_of_the_batch(rows: int, world: int, size: int | None) -> None:
    batch = range(rows)
    total = 0.0
    for rank in range(world):
        for part in micro_batches(batch, rank, world, size):
            total += part.weight * sum(v**2 for v in part.rows) / len(part.rows)
    assert total == pytest.approx(sum(v**2 for v in range(rows)) / rows)


def test_seven_rows_on_two_ranks_by_hand() -> None:
    batch = range(7)
    first, second = micro_batches(batch, 0, 2, 3), micro_batches(batch, 1, 2, 3)
    assert numbers(first) == [[0, 2, 4], [6]]
    assert [part.weight for part in first] == [3 / 7, 1 / 7]
    assert numbers(second) == [[1, 3, 5], [0]], "the first row fills the place of the one that is missing"
    assert [part.weight for part in second] == [3 / 7, 0.0]


def test_one_rank_takes_the_batch_in_order() -> None:
    batch = range(5)
    assert numbers(micro_batches(batch, 0, 1, None)) == [[0, 1, 2, 3, 4]]
    assert numbers(micro_batches(batch, 0, 1, 2)) == [[0, 1], [2, 3], [4]]


@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=12), world=st.integers(1, 4))
def test_a_window_counts_as_many_steps_as_it_has(lengths: list[int], world: int) -> None:
    total = 0.0
    for rank in range(world):
        for part in micro_batches(lengths, rank, world, 2, steps=int):
            # Each step's loss is its window's length.
            total += part.weight * sum(length * length for length in part.rows) / sum(part.rows)
    assert total == pytest.approx(sum(length * length for length in lengths) / sum(lengths))
