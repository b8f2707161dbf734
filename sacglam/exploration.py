"""Directed exploration: seeks the nearest untried action or, for a goal never achieved, the least tried one."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from sacglam.replay.graph import Outcomes, ReplayGraph
from sacglam.types import GOAL_REWARDS, Observation, Rewards

_Layer = Mapping[int, list[tuple[str, Collection[int]]]]
"""Actions at one distance, by how often each was tried in its state: its text, and the first actions on the way."""


@dataclass(frozen=True)
class Exploration:
    """Starts exploring at a share of the steps, and stops once the agent has taken the action it sought.

    It starts in states that another episode has seen. In any other state all actions are untried, the policy's own
    included, and exploring would only lengthen the path that hindsight then teaches. Goals of a type never achieved
    are the exception: the policy knows nothing about them, so in such states at least half of the steps explore, at
    random unless the episode itself has been there before.

    Where states recur, uniformly random actions mostly repeat what is known, and the policy undoes them at its next
    step. So the agent follows known paths to the nearest untried action, as in Go-Explore (Ecoffet et al., 2021); among
    several, to the one whose text was tried least often in any state. Once everything within reach has been tried,
    exploring means one uniformly random action, except for goals never achieved: for these it seeks the action tried
    least often, by balanced wandering (Kearns and Singh, 2002, E3).

    Where goals have no known reward (`Rewards.success` is None), it makes no difference whether one was ever achieved.
    """

    share: float
    rng: np.random.Generator
    graph: Callable[[], ReplayGraph]
    rewards: Rewards = GOAL_REWARDS

    def begins(self, goal: str, state: Observation, others: Sequence[Mapping[Observation, Outcomes]] = ()) -> bool:
        """Whether to explore from `state` on. `others` are the outcomes in the other open episodes."""
        drawn = self.rng.random()
        if drawn >= max(self.share, 0.5):
            return False
        if self._seen(state, others):
            return drawn < self.share
        graph = self.graph()
        return self.rewards.success is not None and graph.goal_type(goal) not in graph.goals_by_type

    def actions(
        self, goal: str, state: Observation, recent: Sequence[Mapping[Observation, Outcomes]] = ()
    ) -> tuple[Collection[int], bool]:
        """The actions to explore in `state`, and whether they are the ones sought or only lead to them.

        `recent` are the outcomes in open episodes, which are not in the graph yet.
        """
        if not self._seen(state, recent):
            return range(len(state.actions)), True
        graph = self.graph()

        @cache
        def outcomes(seen: Observation) -> Outcomes:
            return sum((each[seen] for each in recent if seen in each), graph.outcomes(seen))

        layers = list[_Layer]()
        for layer in _layers(state, outcomes):
            layers.append(layer)
            if 0 in layer:
                break
        else:
            if goal in graph.goals or self.rewards.success is None:
                return range(len(state.actions)), True
        fewest = min(times for layer in layers for times in layer)
        distance, ways = next((n, layer[fewest]) for n, layer in enumerate(layers) if fewest in layer)
        rarest = min(graph.tries[text] for text, _ in ways)
        firsts = {first for text, begun in ways for first in begun if graph.tries[text] == rarest}
        return sorted(firsts), distance == 0

    def _seen(self, state: Observation, recent: Sequence[Mapping[Observation, Outcomes]]) -> bool:
        return any(state in each for each in recent) or bool(self.graph().outcomes(state))


def _layers(state: Observation, outcomes: Callable[[Observation], Outcomes]) -> Iterator[_Layer]:
    """Breadth-first search over the actions within reach, one layer for each distance that has any."""
    seen, layer = {state}, dict[Observation, Collection[int]]({state: ()})
    while layer:
        actions = defaultdict[int, list[tuple[str, Collection[int]]]](list)
        further = defaultdict[Observation, set[int]](set)
        for here, begun in layer.items():
            tries = Counter[int]()
            for (action, follower), times in outcomes(here).items():
                tries[action] += times
                if follower is not None and follower not in seen:
                    further[follower] |= set(begun) or {action}
            for action, text in enumerate(here.actions):
                actions[tries[action]].append((text, begun or {action}))
        if actions:
            yield actions
        seen |= further.keys()
        layer = dict(further)
