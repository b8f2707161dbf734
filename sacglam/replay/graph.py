"""The replayed episodes as one graph, and the values of its paths to each goal.

Episodes that pass through the same state are joined there: a path may begin in one episode and end in another, and
detours drop out. This is the backup of Jiang et al. (2022, "Graph Backup") with hindsight: each goal has its own
values on the same graph.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, KeysView, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import numpy.typing as npt

from sacglam.goals import draw
from sacglam.types import GOAL_REWARDS, Episode, Observation, Past, Rewards

UNTRIED = -np.inf
"""The value of an action that no counted step took."""
_TOLERANCE, _MOST_SWEEPS = 1e-4, 1000  # in a deterministic environment, n sweeps are exact up to n steps away
_LONGEST_PATH = 200
_MOST_ACTIONS = 1 << 20  # per state; a state-action pair is state * _MOST_ACTIONS + action
_STEP = np.dtype(
    [(name, "i8") for name in ("alone", "after", "action", "next_alone", "next_after")]
    + [("reward", "f8"), *((name, "?") for name in ("won", "back", "first"))]
)

Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Outcomes = Counter[tuple[int, Observation | None]]
"""How often each action of a state led to each next state; None: the episode terminated."""


@dataclass(frozen=True, slots=True)
class _Solution:
    """The steps from which a known path leads to a goal, and Q of their state-action pairs."""

    q: Mapping[int, float]  # by pair
    nodes: Indices  # the states of these steps, ascending
    best: Indices  # the pair with the highest Q of each state
    steps: Indices  # ordered by state
    first: Indices  # in `steps`, the first of each state, and the end
    starts: Indices  # those of `steps` that are the first of an episode
    open: Collection[int] = ()  # pairs whose Q may be higher, since not all that follows them is known


class ReplayGraph:
    """States, as the agent sees them, and where each action led.

    A state is what the agent sees. Once an action has had several outcomes, in any state, the `history` steps that a
    prompt shows are part of every state. If it still has several, its value is their mean: the graph is the maximum-
    likelihood Markov decision process of the episodes. Without chance, its values are lower bounds on the optimal Q.

    Where the environment's rewards for other goals are unknown (`Rewards.success` is None), a path leads to the
    termination of an episode, and a goal's values come from its own episodes alone.
    """

    def __init__(
        self,
        episodes: Sequence[Episode],
        gamma: float,
        rewards: Rewards = GOAL_REWARDS,
        history: int = 0,
        goal_type: Callable[[str], str] = str,
    ) -> None:
        """`gamma` is the discount of one step."""
        self._gamma, self._rewards, self._history, self.goal_type = gamma, rewards, history, goal_type
        self._apart = rewards.success is None  # each goal has the values of its own episodes only
        self.goals_by_type: dict[str, list[str]] = {}
        """`goals`, by their types."""
        self.tries = Counter[str]()
        """How often each action was taken, by its text."""
        self._episodes: dict[str, list[tuple[int, int]]] = {}  # first step and end of each, by its goal
        self._places: list[tuple[Episode, int]] = []
        self._numbers = defaultdict[tuple[Observation, Past | None], int](count().__next__)  # None: whatever the past
        self._ended = defaultdict[tuple[str, int], set[bool]](set)  # whether each pair ended an episode with this goal
        self._past_matters = False  # an action in one observation has had several outcomes
        self._outcomes = defaultdict[Observation, Outcomes](Counter)
        self._following = defaultdict[int, set[tuple[int, float]]](set)  # to which state each pair led, and own reward
        self._reached: dict[str, list[tuple[int, int]]] = {}  # (step, end of its episode)
        self._rows = np.zeros(0, dtype=_STEP)
        self.add(episodes)

    def add(self, episodes: Sequence[Episode]) -> None:
        """Add episodes. Values are computed again when they are next needed."""
        rows = list[tuple[float, ...]]()
        for episode in episodes:
            self._add_reached(episode, len(self._places))
            seen = [episode.observation(t) for t in range(len(episode.steps) + 1)]
            alone = after = [self._numbers[each, None] for each in seen]
            if self._history:
                after = [self._numbers[each, episode.past(t, self._history)] for t, each in enumerate(seen)]
            if (last := episode.steps[-1]).terminated and (self._apart or episode.goal not in last.achieved):
                # Ends under any goal, unlike an episode that ended only because it achieved its own.
                alone[-1] = after[-1] = -1
            been = set[int]()
            for t, step in enumerate(episode.steps):
                action, reward = episode.decisions[t].action, self._rewards.own * step.reward
                self._places.append((episode, t))
                self.tries[episode.action(t)] += 1
                ended = step.terminated and t == len(episode.steps) - 1  # a partner may terminate it before
                self._outcomes[episode.observation(t)][action, None if ended else step.observation] += 1
                won = self._rewards.own and episode.goal in step.achieved
                been.add(alone[t])
                back = alone[t + 1] in been and (self._rewards.own or alone[t + 1] != alone[t])
                for numbers in (alone, after):
                    self._following[numbers[t] * _MOST_ACTIONS + action].add((numbers[t + 1], reward))
                if self._history:
                    pair = alone[t] * _MOST_ACTIONS + action
                    self._ended[episode.goal, pair].add(step.terminated)
                    self._past_matters |= max(len(self._following[pair]), len(self._ended[episode.goal, pair])) > 1
                rows.append((alone[t], after[t], action, alone[t + 1], after[t + 1], reward, won, back, t == 0))
        self._rows = np.concatenate([self._rows, np.array(rows, dtype=_STEP)])
        column = {name: np.ascontiguousarray(self._rows[name]) for name in _STEP.names or ()}
        self._node_S = column["after" if self._past_matters else "alone"]
        self._next_S = column["next_after" if self._past_matters else "next_alone"]
        self._pair_S = self._node_S * _MOST_ACTIONS + column["action"]
        self._seen_S, self._reward_S = column["next_alone"], column["reward"]
        self._won_S, self._first_S = column["won"], column["first"]
        self._back = np.flatnonzero(column["back"])
        self._by_next = np.argsort(self._next_S, kind="stable")
        self._first_into = np.searchsorted(self._next_S[self._by_next], np.arange(len(self._numbers) + 1))
        self._solutions: dict[str, _Solution] = {}

    def _add_reached(self, episode: Episode, start: int) -> None:
        end = start + len(episode.steps)
        if self._apart:
            self._episodes.setdefault(episode.goal, []).append((start, end))
            firsts = {episode.goal: len(episode.steps) - 1} if episode.steps[-1].terminated else {}
        else:
            firsts = {}
            for t, step in enumerate(episode.steps):
                for goal in step.achieved:
                    firsts.setdefault(goal, t)
        for goal, t in firsts.items():
            if goal not in self._reached:
                self._reached[goal] = []
                self.goals_by_type.setdefault(self.goal_type(goal), []).append(goal)
            self._reached[goal].append((start + t, end))

    @property
    def goals(self) -> KeysView[str]:
        """The goals to which there are paths, in the order in which they were first reached."""
        return self._reached.keys()

    def outcomes(self, state: Observation) -> Outcomes:
        """Where each action of `state` led, and how often, whatever came before it."""
        return self._outcomes.get(state) or Counter()

    def tried_all(self, state: Observation, past: Past = ()) -> bool:
        """Whether each action of `state` was taken after `past`."""
        pair = self._pair(state, past)
        return all(pair + action in self._following for action in range(len(state.actions)))

    def varies(self, state: Observation, action: int, past: Past = ()) -> bool:
        """Whether `action`, taken in `state` after `past`, has led to more than one state or reward."""
        return len(self._following.get(self._pair(state, past) + action, ())) > 1

    def _pair(self, state: Observation, past: Past) -> int:
        """The first state-action pair of the state; its others follow. Negative if the state is not in the graph."""
        return self._numbers.get((state, past if self._past_matters else None), -1) * _MOST_ACTIONS

    def action_values(self, goal: str, state: Observation, past: Past = ()) -> tuple[float, ...]:
        """For each action of `state`, after `past`, the discounted chance of achieving `goal` on the best known path.

        0 if no known path follows it; `UNTRIED` if it was not taken, or no known path leads from `state` to the goal.
        With own rewards, the return of the best known path after it; `UNTRIED` if there is none.
        Once an episode has achieved the goal its later steps do not count: `achieved` lists only the first time.
        """
        q, pair = self._solve(goal).q if goal in self._reached else {}, self._pair(state, past)
        return tuple(q.get(pair + action, UNTRIED) for action in range(len(state.actions)))

    def settled(self, goal: str, state: Observation, action: int, past: Past = ()) -> bool:
        """Whether the action's value is final: it would not rise if truncations were worth the best known state.

        Always true of goal rewards, which do not count what follows a truncation.
        """
        return self._pair(state, past) + action not in self._solve(goal).open

    def draw(self, rng: np.random.Generator, goal: str) -> tuple[Episode, int]:
        """A step from which a known path leads to the goal: its episode and number.

        Half of the steps lie on the best known path from the start of an episode, which a good policy would follow; the
        other half start in any state. If no action's value is known, it is one that achieved the goal.

        Raises:
            KeyError: no episode achieved the goal.
        """
        solution = self._solve(goal)
        if not solution.q:
            return self._places[draw(rng, self._reached[goal])[0]]
        if len(solution.starts) and rng.random() < 0.5:
            path = self._path(rng, goal, solution.starts[rng.integers(len(solution.starts))])
            return self._places[path[rng.integers(len(path))]]
        row = rng.integers(len(solution.nodes))
        return self._places[solution.steps[rng.integers(solution.first[row], solution.first[row + 1])]]

    def _path(self, rng: np.random.Generator, goal: str, start: np.int64) -> list[np.int64]:
        """Steps from the state of `start` to the goal by the best known actions, each outcome drawn from the record."""
        solution, path, node = self._solve(goal), list[np.int64](), self._node_S[start]
        while len(path) < _LONGEST_PATH:
            row = np.searchsorted(solution.nodes, node)
            if row == len(solution.nodes) or solution.nodes[row] != node:
                break  # this outcome led to a state from which no path is known
            steps = solution.steps[solution.first[row] : solution.first[row + 1]]
            steps = steps[self._pair_S[steps] == solution.best[row]]
            path.append(steps[rng.integers(len(steps))])
            episode, t = self._places[path[-1]]
            if goal in episode.steps[t].achieved:
                break
            node = self._next_S[path[-1]]
        return path

    def _solve(self, goal: str) -> _Solution:
        """Q(s, a) = mean over its steps of r + gamma max_b Q(s', b); by value iteration; the goal is terminal."""
        if goal in self._solutions:
            return self._solutions[goal]
        reached = self._reached[goal]
        counts_S = np.full(len(self._node_S), not self._apart)
        for first_step, end in self._episodes.get(goal, ()):
            counts_S[first_step:end] = True
        for step, end in reached:
            counts_S[step + 1 : end] = False
        hit_S = np.zeros_like(counts_S)
        hit_S[[step for step, _ in reached]] = True
        # Leave out steps rewarded for another goal, and steps back to a state where this goal holds: a goal that
        # held from the start need not be listed again there.
        back = self._back[np.isin(self._seen_S[self._back], self._seen_S[hit_S])]
        left_out_S = self._won_S.copy()
        left_out_S[back] = True
        counts_S &= hit_S | ~left_out_S
        reward_S = self._reward_S if (won := self._rewards.success) is None else np.where(hit_S, won, self._reward_S)
        leads_N, all_S = self._leading_to(hit_S, counts_S), counts_S.copy()
        while self._rewards.own:
            # A step that leads nowhere, unless it ended the episode, could earn any amount. So its action has no
            # value, rather than that of its other outcomes.
            nowhere_S = counts_S & ~(leads_N[self._next_S] | hit_S | (self._next_S < 0))
            if not nowhere_S.any():
                break
            counts_S &= ~np.isin(self._pair_S, self._pair_S[nowhere_S])
            leads_N = self._leading_to(hit_S & counts_S, counts_S)
        solution = self._iterate(counts_S & leads_N[self._node_S], hit_S, reward_S)
        if self._rewards.own and solution.q:
            most = self._iterate(all_S & leads_N[self._node_S], hit_S, reward_S, max(solution.q.values())).q
            margin = 100 * _TOLERANCE * np.abs(reward_S).max()
            solution = replace(solution, open={pair for pair, q in solution.q.items() if most[pair] > q + margin})
        self._solutions[goal] = solution
        return solution

    def _leading_to(self, hit_S: Flags, counts_S: Flags) -> Flags:
        """The states from which steps that count can lead to one of those in `hit_S`; the last element is False."""
        place_N = np.full(len(self._numbers) + 1, -1)  # a state's index in the batch that found it; -1: not found
        nodes = self._node_S[hit_S]
        while len(nodes):
            places = np.arange(len(nodes))
            place_N[nodes] = places
            nodes = nodes[place_N[nodes] == places]  # each once
            first = self._first_into[nodes]
            sizes = self._first_into[nodes + 1] - first
            ends = np.cumsum(sizes)
            into = self._by_next[np.arange(ends[-1]) + np.repeat(first - ends + sizes, sizes)]
            nodes = self._node_S[into[counts_S[into]]]
            nodes = nodes[place_N[nodes] < 0]
        return place_N >= 0  # next state -1 (none) indexes the last element

    def _iterate(
        self, among_S: Flags, hit_S: Flags, reward_S: npt.NDArray[np.float64], elsewhere: float = 0.0
    ) -> _Solution:
        """Value iteration `among` some steps, since no others lead to the goal; other states are worth `elsewhere`."""
        steps = np.flatnonzero(among_S)
        steps = steps[np.argsort(self._node_S[steps], kind="stable")]
        hit_S, reward_S = hit_S[steps], reward_S[steps]
        nodes, first = np.unique(self._node_S[steps], return_index=True)
        pairs, pair_S = np.unique(self._pair_S[steps], return_inverse=True)
        first_pair = np.searchsorted(pairs, nodes * _MOST_ACTIONS)  # pairs ascend by state, as `nodes` do
        next_S = self._next_S[steps]
        row_S = np.searchsorted(nodes, next_S)
        row_S[nodes[np.minimum(row_S, len(nodes) - 1)] != next_S] = len(nodes)  # a last row
        follow_S = self._gamma * (~hit_S & (next_S >= 0))
        count_P = np.bincount(pair_S, minlength=len(pairs))
        value_N = np.append(np.zeros(len(nodes)), elsewhere)
        tolerance = _TOLERANCE * np.abs(reward_S).max(initial=0.0)
        for _ in range(_MOST_SWEEPS):
            q_P = np.bincount(pair_S, reward_S + follow_S * value_N[row_S], len(pairs)) / count_P
            best = np.maximum.reduceat(q_P, first_pair)
            change = np.abs(best - value_N[:-1]).max(initial=0.0)
            value_N[:-1] = best
            if change <= tolerance and (self._rewards.own or best.all()):  # each has a path, however long
                break
        highest = np.flatnonzero(q_P == best[np.searchsorted(nodes, pairs // _MOST_ACTIONS)])
        return _Solution(
            q=dict(zip(pairs.tolist(), q_P.tolist(), strict=True)),
            nodes=nodes,
            best=pairs[highest[np.searchsorted(highest, first_pair)]],
            steps=steps,
            first=np.append(first, len(steps)),
            starts=steps[self._first_S[steps]],
        )
