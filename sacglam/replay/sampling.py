"""Ways to sample replay: which steps a batch is drawn from, and for which goals hindsight relabels them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
from typing_extensions import override

from sacglam.config.algorithm import AlgoConfig
from sacglam.config.kinds import Hindsight
from sacglam.config.section import Fraction
from sacglam.goals import draw
from sacglam.replay.buffer import Entry, ReplayBuffer
from sacglam.replay.graph import UNTRIED, ReplayGraph
from sacglam.replay.windows import hindsight_goals, last_step, window
from sacglam.types import GOAL_REWARDS, Episode, Rewards, Window


@dataclass(frozen=True)
class WindowSampler:
    """Cuts the windows that an algorithm learns from, with the `history` steps before them that prompts show."""

    algo: AlgoConfig
    history: int = 0
    rewards: Rewards = GOAL_REWARDS

    def windows(
        self, draw: Callable[[int], Sequence[Entry]], steps: int, graph: ReplayGraph | None = None
    ) -> list[Window]:
        """Windows of at least `steps` learnt steps from the entries that `draw` yields, with the values of `graph`."""
        rows = list[Window]()
        while steps > 0:
            for entry in draw(-(-steps // self.algo.steps_per_row)):
                rows.append(self._window(entry, graph))
                steps -= self.algo.learnt_steps(rows[-1])
        return rows

    def _window(self, entry: Entry, graph: ReplayGraph | None) -> Window:
        length, gamma = self.algo.window_length, self.algo.gamma
        found = window(entry.episode, entry.goal, entry.start, length, gamma, self.history, self.rewards)
        if graph is None:
            return found
        learnt = range(self.algo.learnt_steps(found))
        taken = [(found.observations[t], found.actions[t], found.past(t, self.history)) for t in learnt]
        values = tuple(graph.action_values(entry.goal, state, past) for state, _, past in taken)
        # The mean over an action's outcomes does not bound the return after one of them.
        bounds = tuple(
            UNTRIED if graph.varies(state, action, past) else each[action]
            for (state, action, past), each in zip(taken, values, strict=True)
        )
        return replace(found, known=values, bounds=bounds)


class Uniform(Hindsight):
    """Keeps a copy of an episode for each goal it achieved, and draws uniformly from originals and copies."""

    type: str = "uniform"

    @override
    def entries(self, buffer: ReplayBuffer, rng: np.random.Generator, size: int) -> list[Entry]:
        return [buffer[i] for i in rng.integers(len(buffer), size=size)]


class NoHindsight(Uniform):
    """Keeps episodes for their own goals only."""

    relabels: ClassVar[bool] = False
    works_without_relabelling: ClassVar[bool] = True

    type: str = "none"


class Ratio(Uniform):
    """Keeps a copy of an episode for each goal it achieved; draws a fixed share from the copies (paper, Appendix E)."""

    type: str = "ratio"
    share: Fraction = 0.5
    """Share of relabelled windows in a batch."""

    @override
    def entries(self, buffer: ReplayBuffer, rng: np.random.Generator, size: int) -> list[Entry]:
        relabelled, real = np.flatnonzero(buffer.relabelled), np.flatnonzero(~buffer.relabelled)
        wanted = self.share * size
        if not wanted.is_integer():  # rounded at random: a batch of windows is drawn in parts, the last of them small
            wanted += rng.random()
        if not len(relabelled) or not len(real):
            return super().entries(buffer, rng, size)
        chosen = [rng.choice(relabelled, int(wanted)), rng.choice(real, size - int(wanted))]
        return [buffer[i] for i in np.concatenate(chosen)]


class Prior(Uniform):
    """Keeps a copy of an episode for each goal it achieved; draws goal types in the environment's proportions."""

    type: str = "prior"

    @override
    def entries(self, buffer: ReplayBuffer, rng: np.random.Generator, size: int) -> list[Entry]:
        present = np.bincount(buffer.types, minlength=len(buffer.prior)) > 0
        weights = buffer.prior * present
        if not weights.sum():
            return super().entries(buffer, rng, size)
        counts = rng.multinomial(size, weights / weights.sum())
        drawn = [rng.choice(np.flatnonzero(buffer.types == kind), count) for kind, count in enumerate(counts) if count]
        return [buffer[i] for i in np.concatenate(drawn)]


class Future(Uniform):
    """Relabels a share of the drawn windows with goals that their episodes achieved later (Andrychowicz et al., 2017);
    all types of goal are equally likely.
    """

    copies: ClassVar[bool] = False

    type: str = "future"
    share: Fraction = 0.5
    """Share of relabelled windows in a batch. They end at the goal, so they may be shorter than the others."""

    @override
    def entries(self, buffer: ReplayBuffer, rng: np.random.Generator, size: int) -> list[Entry]:
        achieving = {kind: np.flatnonzero(each) for kind, each in enumerate(buffer.achieved.T) if each.any()}
        wanted = int(self.share * size + rng.random()) if achieving else 0

        def relabelled() -> Entry:
            """A step on the way to a goal that its episode achieved."""
            kind = rng.choice([*achieving])
            entry = buffer[rng.choice(achieving[kind])]
            goals = hindsight_goals(entry.episode, entry.start)
            goal = draw(rng, [goal for goal in goals if buffer.goal_type(goal) == buffer.type_names[kind]])
            return Entry(entry.episode, goal, int(rng.integers(last_step(entry.episode, goal) + 1)))

        return [relabelled() for _ in range(wanted)] + super().entries(buffer, rng, size - wanted)


class Graph(Uniform):
    """Joins episodes at the states that they share, and relabels a share of the drawn steps with achieved goals
    to which a path is known; all types of goal are equally likely. Windows hold the values of known paths.

    Where the environment's rewards for other goals are unknown, that share is drawn from paths to the end of an episode
    with the same goal.
    """

    copies: ClassVar[bool] = False
    works_without_relabelling: ClassVar[bool] = True

    type: str = "graph"
    share: Fraction = 0.5
    """Share of relabelled steps in a batch."""

    @override
    def batch(
        self,
        buffer: ReplayBuffer,
        rng: np.random.Generator,
        sampler: WindowSampler,
        steps: int,
        graph: Callable[[], ReplayGraph] | None = None,
    ) -> list[Window]:
        drawn_from = buffer.graph()
        values_of, types = graph() if graph else drawn_from, list(drawn_from.goals_by_type.values())
        wanted = int(self.share * steps + rng.random()) if types else 0
        rows = list[Window]()
        for _ in range(wanted):
            # Easy goals are achieved often, hard ones rarely, so a type is drawn first, then a goal of that type.
            # For variety, each window has a single step.
            goal = draw(rng, draw(rng, types))
            rows.append(_known_step(*drawn_from.draw(rng, goal), goal, values_of, sampler))
        return rows + sampler.windows(partial(self.entries, buffer, rng), steps - wanted, values_of)


def _known_step(episode: Episode, t: int, goal: str, graph: ReplayGraph, sampler: WindowSampler) -> Window:
    """One step on the way to `goal`. It bootstraps, with the value of the best known path as a lower bound.

    The known value itself is the target in two cases, if it is settled. Where all actions of the next state have been
    tried, the critic has nothing to add but its errors. Where the action has had several outcomes, the known value is
    their mean, and the larger of that mean and the value after one of them would be too high.
    """
    state, action, step = episode.observation(t), episode.decisions[t].action, episode.steps[t]
    before = episode.past(t, sampler.history)
    known = graph.action_values(goal, state, before)
    reached = goal in step.achieved
    ends = reached or (step.terminated and (goal == episode.goal or episode.goal not in step.achieved))
    reward = step.reward if sampler.rewards.own else 0.0
    if reached and sampler.rewards.success is not None:
        reward = sampler.rewards.success
    varies, bound = graph.varies(state, action, before), known[action]
    settled = bound > sampler.algo.unreachable_value and graph.settled(goal, state, action, before)
    if settled and (varies or graph.tried_all(step.observation, episode.past(t + 1, sampler.history))):
        reward, ends = bound, True
    elif varies and sampler.rewards.own:
        bound = UNTRIED
    return Window(
        goal=goal,
        observations=(state, step.observation),
        actions=(action,),
        rewards=(reward,),
        terminated=ends,
        source="real" if sampler.rewards.success is None else "hindsight",
        return_after=0.0,
        before=before,
        known=(known,),
        bounds=(bound,),
    )
