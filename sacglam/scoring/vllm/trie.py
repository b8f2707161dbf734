"""The actions of one state as a trie of tokens: actions that begin alike share their first scores.

An edge of the trie is named by the tokens from the root to its end, a `Prefix`: the edge `(5, 7, 9)` carries
log p(9 | prompt, 5, 7). An action's log-probability (paper, Eq. 1) is the sum along its path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

Prefix = tuple[int, ...]


def edges(actions: Iterable[Prefix]) -> list[Prefix]:
    """Every edge once, each action's in order."""
    return list(dict.fromkeys(action[:end] for action in actions for end in range(1, len(action) + 1)))


def leaves(wanted: Iterable[Prefix]) -> dict[Prefix, list[Prefix]]:
    """The fewest paths that pass all wanted edges, and the edges each is to bring: none of them twice."""
    found: dict[Prefix, list[Prefix]] = {}
    left = dict.fromkeys(wanted)
    for leaf in sorted(left, key=len, reverse=True):
        if leaf in left:
            found[leaf] = [edge for end in range(1, len(leaf) + 1) if (edge := leaf[:end]) in left]
            for edge in found[leaf]:
                del left[edge]
    return found


def nodes(wanted: Iterable[Prefix], most: int) -> list[tuple[Prefix, ...]]:
    """The wanted edges, grouped by the node that they leave, at most `most` in a group."""
    by_node: dict[Prefix, list[Prefix]] = {}
    for edge in wanted:
        by_node.setdefault(edge[:-1], []).append(edge)
    return [group for siblings in by_node.values() for group in _chunks(siblings, most)]


def log_prob(action: Prefix, scores: Mapping[Prefix, float]) -> float:
    """The sum over the action's tokens, nats (paper, Eq. 1)."""
    return sum(scores[action[:end]] for end in range(1, len(action) + 1))


def _chunks(values: Sequence[Prefix], most: int) -> Iterable[tuple[Prefix, ...]]:
    rest = iter(values)
    while chunk := tuple(islice(rest, most)):
        yield chunk
