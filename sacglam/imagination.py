"""Imagines goals that nobody has named, by substitution in those that were."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

IMAGINED = "imagined"
"""The type of a goal that the environment does not know."""
_TRIES = 16  # draws per goal wanted, since most of them give known goals


@dataclass(eq=False)
class Imagination:
    """Replaces a word of a known goal by one that stands in its place in another (IMAGINE, Colas et al., 2020).

    `Grasp red cat` and `Grow red cat` let `Grasp` and `Grow` replace each other, so that `Grow any bug` gives
    `Grasp any bug`. It depends on the known goals and their order alone.
    """

    _goals: list[list[str]] = field(default_factory=list, init=False)  # the words of each known goal
    _places: defaultdict[tuple[str, ...], list[str]] = field(default_factory=lambda: defaultdict(list), init=False)
    _alike: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list), init=False)

    def draw(self, known: Mapping[str, None], most: int, rng: np.random.Generator) -> list[str]:
        """At most `most` different unknown goals. `known` must only have grown since the last call."""
        for goal in islice(known, len(self._goals), None):
            self._learn(goal.split(" "))
        drawn = dict[str, None]()
        for which, where, instead in rng.random((most * _TRIES if known else 0, 3)).tolist():
            words = self._goals[int(which * len(self._goals))]
            place = int(where * len(words))
            if others := self._alike[words[place]]:
                goal = " ".join([*words[:place], others[int(instead * len(others))], *words[place + 1 :]])
                if goal not in known:
                    drawn[goal] = None
        return list(drawn)[:most]

    def _learn(self, words: list[str]) -> None:
        """Note which words `words` shares a place with, all other words being the same."""
        self._goals.append(words)
        for place, word in enumerate(words):
            there = self._places[(*words[:place], "", *words[place + 1 :])]
            for other in there:
                if other not in self._alike[word]:
                    self._alike[word].append(other)
                    self._alike[other].append(word)
            there.append(word)
