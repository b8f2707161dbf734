"""What every scorer returns: one float32 log policy for each query, over its own actions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from sacglam.models.agent_model import for_each
from sacglam.scoring.base import UniformScorer
from sacglam.types import Query


def _query(number: int, actions: int) -> Query:
    return Query(f"prompt {number}", tuple(f" action {a}" for a in range(actions)))


def test_the_uniform_scorer_gives_every_action_the_same() -> None:
    found = UniformScorer().log_policy([_query(0, 1), _query(1, 4)])
    assert [row.dtype for row in found] == [np.float32, np.float32]
    assert found[0].tolist() == [0.0]
    assert found[1].tolist() == pytest.approx([np.log(1 / 4)] * 4)
    assert UniformScorer().version == 0


def test_the_uniform_scorer_takes_no_queries() -> None:
    assert UniformScorer().log_policy([]) == []


@pytest.mark.parametrize(("batch_size", "sizes"), [(2, [2, 2, 1]), (5, [5]), (64, [5])])
def test_values_keep_the_order_of_their_queries_and_have_no_padding(batch_size: int, sizes: list[int]) -> None:
    counts, seen = [3, 1, 2, 4, 1], list[int]()

    def compute(queries: Sequence[Query]) -> Tensor:
        """The padded table of number * 10 + action."""
        seen.append(len(queries))
        table = torch.full((len(queries), max(len(q.actions) for q in queries)), -torch.inf, dtype=torch.float64)
        for row, query in zip(table, queries, strict=True):
            number = int(query.prompt.split()[1])
            row[: len(query.actions)] = 10.0 * number + torch.arange(len(query.actions))
        return table

    found = for_each([_query(i, count) for i, count in enumerate(counts)], batch_size, compute)
    assert [row.tolist() for row in found] == [[10.0 * i + a for a in range(n)] for i, n in enumerate(counts)]
    assert all(row.dtype == np.float32 for row in found)
    assert seen == sizes
    assert for_each([], batch_size, compute) == []
