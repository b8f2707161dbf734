"""What every scorer returns: one float32 log policy for each query, over its own actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from sacglam.models.heads import PolicyHead
from sacglam.models.packed_lm import ACTOR, PackedLM
from sacglam.models.tokens import QueryTokenizer
from sacglam.scoring.base import UniformScorer
from sacglam.scoring.packed import PackedScorer
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


class FakeLM:
    """Packs queries as they are; its output is the padded table of log-probabilities number * 10 + action."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def pack(self, queries: Sequence[Query]) -> Sequence[Query]:
        return queries

    def forward(self, packed: Sequence[Query], adapter: str) -> Tensor:
        assert adapter == ACTOR
        self.sizes.append(len(packed))
        table = torch.full((len(packed), max(len(q.actions) for q in packed)), -torch.inf)
        for row, query in zip(table, packed, strict=True):
            number = int(query.prompt.split()[1])
            row[: len(query.actions)] = 10.0 * number + torch.arange(len(query.actions))
        return table.requires_grad_()


def _packed_scorer(lm: FakeLM, batch_size: int) -> PackedScorer:
    return PackedScorer(
        cast(PackedLM, lm),
        cast(QueryTokenizer, lambda queries: list(queries)),
        cast(PolicyHead, lambda output: output),
        batch_size=batch_size,
    )


@pytest.mark.parametrize(("batch_size", "sizes"), [(2, [2, 2, 1]), (5, [5]), (64, [5])])
def test_the_packed_scorer_keeps_order_and_drops_padding(batch_size: int, sizes: list[int]) -> None:
    lm = FakeLM()
    counts = [3, 1, 2, 4, 1]
    found = _packed_scorer(lm, batch_size).log_policy([_query(i, count) for i, count in enumerate(counts)])
    assert [row.tolist() for row in found] == [[10.0 * i + a for a in range(n)] for i, n in enumerate(counts)]
    assert all(row.dtype == np.float32 for row in found)
    assert lm.sizes == sizes


def test_the_packed_scorer_takes_no_queries() -> None:
    lm = FakeLM()
    assert _packed_scorer(lm, 4).log_policy([]) == []
    assert lm.sizes == []
