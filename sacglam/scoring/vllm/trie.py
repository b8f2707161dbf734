"""The actions of one state as a trie of tokens: actions with a common prefix share its scores.

An edge is identified by the tokens from the root to its end, a `Prefix`: edge `(5, 7, 9)` carries
log p(9 | prompt, 5, 7). An action's log-probability (paper, Eq. 1) is the sum along its path.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

Prefix = tuple[int, ...]


def edges_of(actions: Iterable[Prefix]) -> list[Prefix]:
    """Every edge once, each action's from the root on."""
    return list(dict.fromkeys(edge for action in actions for edge in _path(action)))


def by_path(edges: Collection[Prefix]) -> list[tuple[Prefix, ...]]:
    """The edges, grouped by the fewest paths from the root that cover them; each edge is in one group."""
    groups: list[tuple[Prefix, ...]] = []
    left = set(edges)
    for leaf in sorted(edges, key=len, reverse=True):
        if leaf in left:
            groups.append(tuple(edge for edge in _path(leaf) if edge in left))
            left.difference_update(groups[-1])
    return groups


def by_node(edges: Iterable[Prefix], limit: int) -> list[tuple[Prefix, ...]]:
    """The edges, grouped by the node that they leave, at most `limit` in a group."""
    siblings: dict[Prefix, list[Prefix]] = {}
    for edge in edges:
        siblings.setdefault(edge[:-1], []).append(edge)
    return [tuple(group[i : i + limit]) for group in siblings.values() for i in range(0, len(group), limit)]


def log_prob(action: Prefix, scores: Mapping[Prefix, float]) -> float:
    """The sum over the action's tokens, nats (paper, Eq. 1)."""
    return sum(scores[edge] for edge in _path(action))


def _path(action: Prefix) -> Iterator[Prefix]:
    return (action[:end] for end in range(1, len(action) + 1))
