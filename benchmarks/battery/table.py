"""A table of Q values with hindsight: a lower bound on what experience allows where states repeat.

    python -m benchmarks.battery.table battery/castle

It generalises nothing, and is right about what it has seen: it sweeps each episode backwards, towards every goal that
the episode achieved. An agent that ends below it has had enough experience, and learnt too little from it.
"""

from __future__ import annotations

import argparse
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import numpy as np

from sacglam.clock import PhaseClock
from sacglam.config import Config, load
from sacglam.envs import make
from sacglam.evaluate import evaluate
from sacglam.goals import GoalSource
from sacglam.policy import SamplingPolicy
from sacglam.prompt import Prompt
from sacglam.rollout import Rollout
from sacglam.scoring.base import Scorer, UniformScorer
from sacglam.types import Episode, LogPolicy, Query

EPSILON, GAMMA, SWEPT = 0.3, 0.95, 40
EPISODES, _ACTIONS = 0xBA77, 0xE41


@dataclass(frozen=True)
class Trace:
    """An episode towards one goal: L + 1 states, the L actions between them, and whether they achieve it."""

    states: Sequence[Query]
    actions: Sequence[int]
    achieves: bool


@dataclass
class Table:
    """Q by state, as a scorer: with probability `epsilon` any action, else one of those with the highest Q."""

    epsilon: float = EPSILON
    q: dict[Query, list[float]] = field(default_factory=dict)
    version: int = 0

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        return [self._log_policy(query) for query in queries]

    def _log_policy(self, query: Query) -> LogPolicy:
        q = np.array(self.q.get(query, [0.0] * len(query.actions)))
        best = q == q.max()
        with np.errstate(divide="ignore"):  # log 0, of the actions that are not taken
            return np.log(self.epsilon / len(q) + (1 - self.epsilon) * best / best.sum()).astype(np.float32)

    def sweep(self, trace: Trace) -> None:
        """Q(s, a) = 1 at the step that achieves the goal, else gamma max_a' Q(s', a'); from the last step backwards."""
        for t in reversed(range(len(trace.actions))):
            last = trace.achieves and t == len(trace.actions) - 1
            value = 1.0 if last else GAMMA * max(self.q.get(trace.states[t + 1], (0.0,)))
            self.q.setdefault(trace.states[t], [0.0] * len(trace.states[t].actions))[trace.actions[t]] = value


def traces(episode: Episode, prompt: Prompt) -> list[Trace]:
    """The episode towards its own goal, and up to each goal that it achieved."""
    ends = {goal: t + 1 for t, step in enumerate(episode.steps) for goal in step.achieved}
    observations = [episode.observation(t) for t in range(len(episode.steps) + 1)]
    actions = [decision.action for decision in episode.decisions]
    found = []
    for goal, end in ({episode.goal: len(actions)} | ends).items():
        states = [
            prompt(goal, observation, episode.past(t, prompt.settings.history))
            for t, observation in enumerate(observations[: end + 1])
        ]
        found.append(Trace(states, actions[:end], goal in ends))
    return found


def learn(config: Config, seed: int) -> Table:
    """The table after `config.steps` steps in its environment, one episode after another."""
    policy_rng, starts_rng = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(2))
    env, prompt, table = make(config.env.name, **config.env.options), Prompt(config.prompt), Table()
    starts = GoalSource(env.goals("train"), starts_rng)
    rollout = Rollout([env], table, SamplingPolicy(policy_rng), starts, PhaseClock(), prompt)
    recent: deque[list[Trace]] = deque(maxlen=SWEPT)
    for ended in islice(iter(rollout.step, None), config.steps):
        for episode in ended:
            recent.append(traces(episode, prompt))
            for trace in (trace for each in recent for trace in each):
                table.sweep(trace)
    return Table(epsilon=0.0, q=table.q)


def success(config: Config, scorer: Scorer, seed: int, episodes: int) -> float:
    """Success of a scorer's policy in fresh episodes."""
    policy, rng = (SamplingPolicy(np.random.default_rng([seed, _ACTIONS])), np.random.default_rng([seed, EPISODES]))
    make_env = partial(make, config.env.name, **config.env.options)
    found = evaluate(make_env, scorer, policy, episodes=episodes, rng=rng, prompt=Prompt(config.prompt))
    return found.success["overall"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="file or name of a configuration: its environment, prompt and steps")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="repeatable")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=200, help="of each evaluation")
    options = parser.parse_args()
    config = load(options.config, options.set)
    scorers: dict[str, Scorer] = {"random": UniformScorer(), "table": learn(config, options.seed)}
    found = {name: success(config, scorer, options.seed, options.episodes) for name, scorer in scorers.items()}
    print(json.dumps([{"steps": config.steps, **found}]))


if __name__ == "__main__":
    main()
