"""Which rows of a batch a rank learns from, and with what weight, so that all ranks together give the batch's mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sacglam.types import Transition


@dataclass(frozen=True)
class Share:
    """One micro-batch of one rank: its mean loss counts `weight`, its part of the whole batch."""

    rows: Sequence[Transition]
    weight: float


def shares(batch: Sequence[Transition], rank: int, world: int, size: int | None) -> list[Share]:
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


def with_bootstrap(rows: Sequence[Transition]) -> Sequence[Transition]:
    """`rows`, one of them with a bootstrap in any case: the same forwards on every rank, as above.

    Termination is a bootstrap with discount 0, so the loss stays what it was.
    """
    if not all(row.terminated for row in rows):
        return rows
    first = rows[0]
    # Its own state stands in for the next one: what follows an episode's end may be no state that can be scored.
    return [replace(first, terminated=False, discount_n=0.0, next_observation=first.observation), *rows[1:]]
