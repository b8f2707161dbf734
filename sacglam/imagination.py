"""Imagines goals by substituting words in known goals, and pursues those that a partner has named since."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import ne
from typing import Any

import numpy as np
from typing_extensions import override

from sacglam.goals import GoalSource, Start, draw
from sacglam.types import Episode

IMAGINED = "imagined"
"""The type of a goal that the environment does not know."""
_TRIES = 16  # draws per goal wanted, since most draws yield known goals


@dataclass(eq=False)
class Imagination:
    """Replaces a word of a known goal with one that takes its place in another (IMAGINE, Colas et al., 2020).

    `Grasp red cat` and `Grow red cat` make `Grasp` and `Grow` interchangeable, so `Grow any bug` yields
    `Grasp any bug`. What is interchangeable depends only on the known goals and their order.
    """

    _goals: list[list[str]] = field(default_factory=list, init=False)  # the words of each known goal
    _places: defaultdict[tuple[str, ...], list[str]] = field(default_factory=lambda: defaultdict(list), init=False)
    _alike: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list), init=False)

    def draw(self, known: Mapping[str, None], most: int, rng: np.random.Generator) -> list[str]:
        """At most `most` different unknown goals. Between calls, `known` may only grow."""
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
        """Record interchangeable words: `words` and an earlier goal differ only in them, at one place."""
        self._goals.append(words)
        for place, word in enumerate(words):
            there = self._places[(*words[:place], "", *words[place + 1 :])]
            for other in there:
                if other not in self._alike[word]:
                    self._alike[word].append(other)
                    self._alike[other].append(word)
            there.append(word)


def _differ_by_a_word(one: str, other: str) -> bool:
    words, others = one.split(" "), other.split(" ")
    return len(words) == len(others) and sum(map(ne, words, others)) == 1


@dataclass(eq=False)
class ImaginedGoals(GoalSource):
    """In a share of the episodes, pursues `known` goals that are not training goals, in scenes of goals that are.

    A goal is known once a partner has named it, so only imagined goals that seemed to be achieved are pursued. The
    scene is that of a goal that differs by one word, if any: it is more likely to have what the imagined one needs.
    """

    source: GoalSource
    known: Callable[[], Mapping[str, None]]
    goal_type: Callable[[str], str]
    share: float
    _counts: list[int] = field(default_factory=lambda: [0, 0, 0, 0], init=False)  # since the last line of metrics

    @override
    def __next__(self) -> Start:
        start = next(self.source)
        if self.rng.random() >= self.share or not (imagined := [g for g in self.known() if g not in self.given]):
            return start
        goal = draw(self.rng, imagined)
        akin = [each for each in self.goals if _differ_by_a_word(goal, each)]
        return Start(goal, start.seed, scene=draw(self.rng, akin) if akin else start.goal)

    @override
    def observe(self, episodes: Sequence[Episode]) -> None:
        self.source.observe([episode for episode in episodes if episode.goal in self.given])
        own = [episode for episode in episodes if episode.goal not in self.given]
        exist = sum(self.goal_type(episode.goal) != IMAGINED for episode in own)
        new = (len(episodes), len(own), sum(episode.success for episode in own), exist)
        self._counts = [count + more for count, more in zip(self._counts, new, strict=True)]

    @override
    def metrics(self) -> dict[str, float]:
        (ended, pursued, achieved, exist), self._counts = self._counts, [0, 0, 0, 0]
        shares = {"imagined_success": achieved / pursued, "imagined_exist": exist / pursued} if pursued else {}
        return {**self.source.metrics(), **({"imagined_share": pursued / ended} if ended else {}), **shares}

    @override
    def state(self) -> dict[str, Any]:
        return {"source": self.source.state(), "counts": self._counts}

    @override
    def load_state(self, state: Mapping[str, Any]) -> None:
        self.source.load_state(state["source"])
        self._counts = list(state["counts"])
