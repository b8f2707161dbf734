"""Rows to ranks: nothing lost, nothing twice, equally many micro-batches, and weights that give the batch's mean."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sacglam.learner.backend import micro_batches


def numbers(parts: list[tuple[Sequence[int], float]]) -> list[list[int]]:
    return [list(rows) for rows, _ in parts]


@given(rows=st.integers(1, 40), world=st.integers(1, 8), size=st.none() | st.integers(1, 12))
def test_shares_partition_the_batch(rows: int, world: int, size: int | None) -> None:
    batch = range(rows)
    ranks = [micro_batches(batch, rank, world, size) for rank in range(world)]
    real = [v for parts in ranks for own, weight in parts if weight for v in own]
    assert sorted(real) == list(range(rows))
    assert len({len(parts) for parts in ranks}) == 1, "every rank runs as many forwards"
    assert all(own for parts in ranks for own, _ in parts)
    assert all(len(own) <= (size or rows) for parts in ranks for own, _ in parts)
    counts = [sum(len(own) for own, weight in parts if weight) for parts in ranks]
    assert max(counts) - min(counts) <= 1
    assert sum(weight for parts in ranks for _, weight in parts) == pytest.approx(1)


@given(rows=st.integers(1, 40), world=st.integers(1, 8), size=st.none() | st.integers(1, 12))
def test_weighted_means_add_up_to_the_mean_of_the_batch(rows: int, world: int, size: int | None) -> None:
    batch = range(rows)
    total = 0.0
    for rank in range(world):
        for own, weight in micro_batches(batch, rank, world, size):
            total += weight * sum(v**2 for v in own) / len(own)
    assert total == pytest.approx(sum(v**2 for v in range(rows)) / rows)


def test_seven_rows_on_two_ranks_by_hand() -> None:
    batch = range(7)
    first, second = micro_batches(batch, 0, 2, 3), micro_batches(batch, 1, 2, 3)
    assert numbers(first) == [[0, 2, 4], [6]]
    assert [weight for _, weight in first] == [3 / 7, 1 / 7]
    assert numbers(second) == [[1, 3, 5], [0]], "the first row fills the place of the one that is missing"
    assert [weight for _, weight in second] == [3 / 7, 0.0]


def test_one_rank_takes_the_batch_in_order() -> None:
    batch = range(5)
    assert numbers(micro_batches(batch, 0, 1, None)) == [[0, 1, 2, 3, 4]]
    assert numbers(micro_batches(batch, 0, 1, 2)) == [[0, 1], [2, 3], [4]]


@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=12), world=st.integers(1, 4))
def test_a_window_counts_as_many_steps_as_it_has(lengths: list[int], world: int) -> None:
    total = 0.0
    for rank in range(world):
        for own, weight in micro_batches(lengths, rank, world, 2, steps=int):
            # Each step's loss is its window's length.
            total += weight * sum(length * length for length in own) / sum(own)
    assert total == pytest.approx(sum(length * length for length in lengths) / sum(lengths))
