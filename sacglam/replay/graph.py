"""The replayed episodes as one graph, and what it knows about reaching a goal.

Episodes that pass through the same state share what they found there: a path may begin in one episode and end in
another, and detours fall away. This is the backup of Jiang et al. (2022, "Graph Backup") with hindsight: each goal has
values of its own on the same graph.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from sacglam.types import Episode, Observation

UNTRIED = -1.0
"""The value of an action that no replayed episode took in that state."""
_TOLERANCE, _MOST_SWEEPS = 1e-4, 200  # one sweep is exact where no step is random


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step led to: the next state (None: the episode is lost), and the goals it achieved."""

    next: Observation | None
    achieved: tuple[str, ...]


Outcomes = Counter[Outcome]
ActionValues = dict[int, float]
_Nodes = dict[Observation, dict[int, Outcomes]]


class ReplayGraph:
    """States by what the agent sees of them, and how often each action led to which outcome.

    Where texts hide what a state is, or chance decides, an action has several outcomes and its value is their mean:
    the graph is the maximum-likelihood Markov decision process of the episodes.
    """

    def __init__(self, gamma: float) -> None:
        """`gamma` discounts a step."""
        self._gamma = gamma
        self._nodes: _Nodes = {}
        self._values: defaultdict[str, dict[Observation, ActionValues]] = defaultdict(dict)

    def __len__(self) -> int:
        """The states in which an action was taken."""
        return len(self._nodes)

    def add(self, episode: Episode) -> None:
        """Add an episode's steps."""
        self._values.clear()
        for here, action, outcome in _transitions(episode):
            self._nodes.setdefault(here, {}).setdefault(action, Counter())[outcome] += 1

    def remove(self, episode: Episode) -> None:
        """Remove the steps of an episode that was added."""
        self._values.clear()
        for here, action, outcome in _transitions(episode):
            actions = self._nodes[here]
            actions[action][outcome] -= 1
            if not actions[action][outcome]:
                del actions[action][outcome]
            if not actions[action]:
                del actions[action]
            if not actions:
                del self._nodes[here]

    def forget_values(self) -> None:
        """Drop the values that `action_values` caches; it then solves from scratch."""
        self._values.clear()

    def action_values(self, goal: str, state: Observation) -> tuple[float, ...]:
        """For each action of `state` the discounted chance of achieving `goal` on the best known path after it.

        0 where no known path leads there, `UNTRIED` where the action was not taken. With rewards of 0 and 1 it is a
        lower bound on the optimal Q where no step is random. A step that repeats an achievement counts as one that
        missed the goal, since `achieved` names only the first: the value is then too low, never too high.
        """
        known = self._values[goal]
        if state in self._nodes and state not in known:
            known |= self._solve(goal, state)
        values = known.get(state, {})
        return tuple(values.get(action, UNTRIED) for action in range(len(state.actions)))

    def _solve(self, goal: str, state: Observation) -> dict[Observation, ActionValues]:
        """Action values of every state that can be reached from `state`, by value iteration outwards from the goal."""
        reachable = self._reachable(state)
        best = dict.fromkeys(reachable, 0.0)
        found = {node: dict.fromkeys(actions, 0.0) for node, actions in reachable.items()}
        layers = list(_layers(goal, reachable))
        for _ in range(_MOST_SWEEPS):
            change = 0.0
            for layer in layers:
                # From the values before this layer, so that the order within a layer does not matter.
                found |= {node: self._backup(goal, reachable[node], best) for node in layer}
                change = max(change, *(abs(max(found[node].values()) - best[node]) for node in layer))
                best |= {node: max(found[node].values()) for node in layer}
            if change < _TOLERANCE:
                break
        return found

    def _reachable(self, state: Observation) -> _Nodes:
        reachable, frontier = {state: self._nodes[state]}, [state]
        while frontier:
            outcomes = (outcome for outcomes in reachable[frontier.pop()].values() for outcome in outcomes)
            for outcome in outcomes:
                if outcome.next in self._nodes and outcome.next not in reachable:
                    reachable[outcome.next] = self._nodes[outcome.next]
                    frontier.append(outcome.next)
        return reachable

    def _backup(self, goal: str, actions: dict[int, Outcomes], best: dict[Observation, float]) -> ActionValues:
        """Q(s, a) = mean over outcomes of 1 where the goal was achieved, else gamma max_b Q(s', b)."""

        def value(outcome: Outcome) -> float:
            if goal in outcome.achieved:
                return 1.0
            return self._gamma * best.get(outcome.next, 0.0) if outcome.next else 0.0

        # fsum does not depend on the order, which differs after a resume.
        return {
            action: math.fsum(count * value(outcome) for outcome, count in outcomes.items()) / outcomes.total()
            for action, outcomes in actions.items()
        }


def _transitions(episode: Episode) -> Iterator[tuple[Observation, int, Outcome]]:
    for t, (decision, step) in enumerate(zip(episode.decisions, episode.steps, strict=True)):
        # An episode that ended with its own goal would have gone on towards another.
        lost = step.terminated and episode.goal not in step.achieved
        yield episode.observation(t), decision.action, Outcome(None if lost else step.observation, step.achieved)


def _layers(goal: str, nodes: _Nodes) -> Iterator[set[Observation]]:
    """States by the least number of steps to the goal, nearest first; those that cannot reach it are left out."""
    before: defaultdict[Observation | None, set[Observation]] = defaultdict(set)
    layer: set[Observation] = set()
    for node, outcomes in ((node, outcomes) for node, actions in nodes.items() for outcomes in actions.values()):
        for outcome in outcomes:
            before[outcome.next].add(node)
            if goal in outcome.achieved:
                layer.add(node)
    seen: set[Observation] = set()
    while layer:
        yield layer
        seen |= layer
        layer = set().union(*(before[node] for node in layer)) - seen
