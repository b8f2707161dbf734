"""The replayed episodes as one graph, and the values of its paths to each goal.

Episodes that pass through the same state are joined there: a path may begin in one episode and end in another, and
detours drop out. This is the backup of Jiang et al. (2022, "Graph Backup") with hindsight: each goal has its own
values on the same graph.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from sacglam.types import GOAL_REWARDS, Episode, Observation, Past, Rewards

UNTRIED = -np.inf
"""The value of an action that no counted step took."""
_TOLERANCE, _MOST_SWEEPS = 1e-4, 200  # if no step is random, one sweep per step to the goal is exact
_LONGEST_PATH = 200

Indices = npt.NDArray[np.int64]
Outcomes = Counter[tuple[int, Observation | None]]
"""How often each action of a state led where; None: to the termination of an episode."""


@dataclass(frozen=True, slots=True)
class _Solution:
    """The steps from which a known path leads to a goal, and Q of their state-action pairs."""

    q: Mapping[int, float]  # by pair
    nodes: Indices  # the states of these steps, ascending
    steps: Indices  # ordered by state
    first: Indices  # in `steps`, the first of each state, and the end
    starts: Indices  # those of `steps` that are the first of an episode


class ReplayGraph:
    """States, as the agent sees them, and where each action led.

    The `history` steps that a prompt shows are part of a state: two corridors that look alike are different states
    after different steps. If the agent still sees too little, or chance decides, an action has several outcomes and its
    value is their mean: the graph is the maximum-likelihood Markov decision process of the episodes. If no step is
    random, its values are lower bounds of the optimal Q.

    Where the environment's rewards for other goals are unknown (`Rewards.success` is None), a path leads to the
    termination of an episode, and a goal's values come from its own episodes alone.
    """

    def __init__(
        self, episodes: Sequence[Episode], gamma: float, rewards: Rewards = GOAL_REWARDS, history: int = 0
    ) -> None:
        """Takes time linear in the episodes' steps; `gamma` discounts a step."""
        self._gamma, self._rewards = gamma, rewards
        self._apart = rewards.success is None  # each goal has the values of its own episodes only
        steps = [(episode.goal, step) for episode in episodes for step in episode.steps]
        self._reward_S = np.array([rewards.own * step.reward for _, step in steps])
        self._won_S = np.array([rewards.own and goal in step.achieved for goal, step in steps], dtype=bool)
        self._episodes: dict[str, list[tuple[int, int]]] = {}  # first step and end of each, by its goal
        self._places = [(episode, t) for episode in episodes for t in range(len(episode.steps))]
        self._numbers = defaultdict[Observation, dict[Past, int]](dict)
        self._reached: dict[str, list[tuple[int, int]]] = {}  # (step, end of its episode)
        nodes, actions, following = list[int](), list[int](), list[int]()
        new = count()
        for episode in episodes:
            self._add_reached(episode, len(nodes))
            numbers = list[int]()
            for t in range(len(episode.steps) + 1):
                same, past = self._numbers[episode.observation(t)], episode.past(t, history)
                numbers.append(same[past] if past in same else same.setdefault(past, next(new)))
            nodes += numbers[:-1]
            following += numbers[1:]
            actions += [decision.action for decision in episode.decisions]
            if episode.loses_at(-1) or (self._apart and episode.steps[-1].terminated):
                following[-1] = -1
        self._states = next(new)
        self._node_S, self._next_S = np.array(nodes, dtype=np.int64), np.array(following, dtype=np.int64)
        width = max(actions, default=0) + 1
        pairs, self._pair_S = np.unique(self._node_S * width + np.array(actions, dtype=np.int64), return_inverse=True)
        self._node_P, self._action_P = np.divmod(pairs, width)
        self._solutions: dict[str, _Solution] = {}
        self._outcomes: dict[Observation, Outcomes] = {}

    def _add_reached(self, episode: Episode, start: int) -> None:
        end, seen = start + len(episode.steps), set[str]()
        if self._apart:
            self._episodes.setdefault(episode.goal, []).append((start, end))
            if episode.steps[-1].terminated:
                self._reached.setdefault(episode.goal, []).append((end - 1, end))
            return
        for t, step in enumerate(episode.steps):
            for goal in step.achieved:
                if goal not in seen:
                    seen.add(goal)
                    self._reached.setdefault(goal, []).append((start + t, end))

    @property
    def goals(self) -> Sequence[str]:
        """The goals to which there are paths, in the order in which they were first reached."""
        return list(self._reached)

    @cached_property
    def tries(self) -> Counter[str]:
        """How often each action was taken, by its text."""
        return Counter(episode.action(t) for episode, t in self._places)

    @cached_property
    def _by_node(self) -> tuple[Indices, Indices]:
        """The steps ordered by state, and the first of each state in this order, and the end."""
        steps = np.argsort(self._node_S, kind="stable")
        return steps, np.searchsorted(self._node_S[steps], np.arange(self._states + 1))

    def _steps_from(self, state: Observation) -> Iterator[tuple[Episode, int]]:
        """The steps taken from `state`, whatever came before it."""
        steps, first = self._by_node
        for node in self._numbers[state].values() if state in self._numbers else ():
            yield from (self._places[step] for step in steps[first[node] : first[node + 1]].tolist())

    def outcomes(self, state: Observation) -> Outcomes:
        """Where each action of `state` led, and how often, whatever came before it."""
        if state not in self._outcomes:
            self._outcomes[state] = Counter(
                (episode.decisions[t].action, None if episode.steps[t].terminated else episode.observation(t + 1))
                for episode, t in self._steps_from(state)
            )
        return self._outcomes[state]

    def action_values(self, goal: str, state: Observation, past: Past = ()) -> tuple[float, ...]:
        """For each action of `state`, after `past`, the discounted chance of achieving `goal` on the best known path.

        0 if no known path follows it; `UNTRIED` if it was not taken, or no known path leads from `state` to the goal.
        With own rewards, the return of the best known path after it; `UNTRIED` if there is none.
        Once an episode has achieved the goal its later steps do not count: `achieved` lists only the first time.
        """
        values = [UNTRIED] * len(state.actions)
        if goal in self._reached and state in self._numbers and past in self._numbers[state]:
            q = self._solve(goal).q
            for pair in self._pairs(self._numbers[state][past]):
                values[self._action_P[pair]] = q.get(pair, UNTRIED)
        return tuple(values)

    def draw(self, rng: np.random.Generator, goal: str) -> tuple[Episode, int]:
        """A step from which a known path leads to the goal: its episode and number.

        Half of the steps lie on the best known path from the start of an episode, which a good policy would follow; the
        other half start in any state.

        Raises:
            KeyError: no episode achieved the goal.
        """
        solution = self._solve(goal)
        if len(solution.starts) and rng.random() < 0.5:
            path = self._path(rng, goal, int(rng.choice(solution.starts)))
            return self._places[path[rng.integers(len(path))]]
        row = int(rng.integers(len(solution.nodes)))
        return self._places[solution.steps[rng.integers(solution.first[row], solution.first[row + 1])]]

    def _pairs(self, node: int) -> range:
        return range(*np.searchsorted(self._node_P, [node, node + 1]))

    def _path(self, rng: np.random.Generator, goal: str, start: int) -> list[int]:
        """Steps from the state of `start` to the goal by the best known actions, each outcome drawn from the record."""
        solution, path, node = self._solve(goal), list[int](), int(self._node_S[start])
        while len(path) < _LONGEST_PATH:
            row = int(np.searchsorted(solution.nodes, node))
            if row == len(solution.nodes) or solution.nodes[row] != node:
                break  # this outcome led to a state from which no path is known
            best = max(self._pairs(node), key=lambda pair: solution.q.get(pair, UNTRIED))
            steps = solution.steps[solution.first[row] : solution.first[row + 1]]
            path.append(int(rng.choice(steps[self._pair_S[steps] == best])))
            episode, t = self._places[path[-1]]
            if goal in episode.steps[t].achieved:
                break
            node = int(self._next_S[path[-1]])
        return path

    def _solve(self, goal: str) -> _Solution:
        """Q(s, a) = mean over its steps of r + gamma max_b Q(s', b); by iteration. Nothing follows the goal.

        Raises:
            KeyError: no episode achieved the goal.
        """
        if goal not in self._solutions:
            self._solutions[goal] = self._solution(goal)
        return self._solutions[goal]

    def _solution(self, goal: str) -> _Solution:
        reached = self._reached[goal]
        counts_S = np.full(len(self._node_S), not self._apart)
        for first_step, end in self._episodes.get(goal, ()):
            counts_S[first_step:end] = True
        for step, end in reached:
            counts_S[step + 1 : end] = False
        hit_S = np.zeros_like(counts_S)
        hit_S[[step for step, _ in reached]] = True
        counts_S &= hit_S | ~self._won_S  # the reward for an episode's own goal is not another goal's
        steps = self._leading_to(hit_S, counts_S)
        steps = steps[np.argsort(self._node_S[steps], kind="stable")]
        nodes, first = np.unique(self._node_S[steps], return_index=True)
        hit_S = hit_S[steps]
        reward_S = self._reward_S[steps]
        if self._rewards.success is not None:
            reward_S[hit_S] = self._rewards.success
        q = self._iterate(nodes, steps, hit_S, reward_S)
        starts = np.array([step for step in steps.tolist() if self._places[step][1] == 0], dtype=np.int64)
        return _Solution(q, nodes, steps, np.append(first, len(steps)), starts)

    def _leading_to(self, hit_S: npt.NDArray[np.bool_], counts_S: npt.NDArray[np.bool_]) -> Indices:
        """The steps that count, in states from which they can lead to one of those in `hit_S`."""
        leads_N = np.zeros(self._states + 1, dtype=bool)  # -1, no state, is the last
        leads_N[self._node_S[hit_S]] = True
        found = 0
        while (count := int(leads_N.sum())) > found:
            found = count
            leads_N[self._node_S[counts_S & leads_N[self._next_S]]] = True
        if self._rewards.own:  # a step that leads nowhere could cost any amount: it gets no value, not 0
            counts_S &= leads_N[self._next_S] | hit_S
        return np.flatnonzero(counts_S & leads_N[self._node_S])

    def _iterate(
        self, nodes: Indices, steps: Indices, hit_S: npt.NDArray[np.bool_], reward_S: npt.NDArray[Any]
    ) -> Mapping[int, float]:
        """Value iteration on these steps alone, since no others lead to the goal."""
        pairs, pair_S = np.unique(self._pair_S[steps], return_inverse=True)
        # Pairs ascend by state, as `nodes` do.
        first_pair = np.searchsorted(self._node_P[pairs], nodes)
        row_S = np.searchsorted(nodes, self._next_S[steps])
        row_S[~np.isin(self._next_S[steps], nodes)] = len(nodes)  # a last row, of value 0
        follow_S = self._gamma * (~hit_S & (row_S < len(nodes)))
        count_P = np.bincount(pair_S, minlength=len(pairs))
        value_N = np.zeros(len(nodes) + 1)
        for _ in range(_MOST_SWEEPS):
            q_P = np.bincount(pair_S, reward_S + follow_S * value_N[row_S], len(pairs)) / count_P
            best = np.maximum.reduceat(q_P, first_pair)
            change = float(np.abs(best - value_N[:-1]).max())
            value_N[:-1] = best
            if change < _TOLERANCE:
                break
        return dict(zip(pairs.tolist(), q_P.tolist(), strict=True))
