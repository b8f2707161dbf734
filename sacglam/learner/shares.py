"""Which rows of a batch a rank learns from, and with what weight, so that all ranks together give the batch's mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Row = TypeVar("Row")


@dataclass(frozen=True)
class Share(Generic[Row]):
    """One micro-batch of one rank: its mean loss counts `weight`, its part of the whole batch."""

    rows: Sequence[Row]
    weight: float


def shares(batch: Sequence[Row], rank: int, world: int, size: int | None) -> list[Share[Row]]:
    """The micro-batches of `rank`, at most `size` rows each (None: all at once), equally many on every rank.

    Rows are dealt out in turn, so ranks differ by one row at most. A rank that runs out of rows goes through the
    batch's first one once more, with weight 0: where weights are sharded every forward and backward is a collective
    operation, and a rank that left one out would leave the others waiting.
    """
    own = batch[rank::world]
    most = -(-len(batch) // world)  # rows of the rank that has most
    size = size or most
    parts = [own[i : i + size] for i in range(0, most, size)]
    return [Share(rows or batch[:1], len(rows) / len(batch)) for rows in parts]
