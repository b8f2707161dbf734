"""Episodes of the policy as it acts in training, with the probability and Q value of every action."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from sacglam.clock import PhaseClock
from sacglam.envs.base import TextEnv
from sacglam.goals import GoalSource
from sacglam.policy import SamplingPolicy
from sacglam.prompt import Prompt, query
from sacglam.rollout import Rollout
from sacglam.scoring.base import Scorer
from sacglam.types import Episode, LogPolicy, Query

QValues = Callable[[Sequence[Query]], list[npt.NDArray[np.float32]]]
_DIGITS = 5
EPISODES = 4
"""Episodes per line of samples.jsonl."""


def sample_episodes(
    make_env: Callable[[], TextEnv],
    scorer: Scorer,
    q_values: QValues,
    episodes: int,
    rng: np.random.Generator,
    prompt: Prompt = query,
) -> list[dict[str, Any]]:
    """Play episodes with training goals and sampled actions; returns them as JSON values, in starting order.

    An episode has `goal`, `goal_type`, `success` and `steps`. A step has `observation`, `actions` with their
    `probabilities` and `q`, the index of the action `taken`, and the goals it `achieved`.
    """
    env = make_env()
    goals = GoalSource(env.goals("train"), rng)
    starts = [next(goals) for _ in range(episodes)]
    seen = _Recording(scorer)
    rollout = Rollout([make_env() for _ in starts], seen, SamplingPolicy(rng), iter(starts), PhaseClock(), prompt)
    order = {(start.goal, start.seed): i for i, start in enumerate(starts)}
    played = sorted((e for ended in rollout.drain() for e in ended), key=lambda e: order[e.goal, e.seed])
    history = prompt.settings.history
    states = [[prompt(e.goal, e.observation(t), e.past(t, history)) for t in range(len(e.steps))] for e in played]
    visited = list(chain.from_iterable(states))
    q = dict(zip(visited, q_values(visited), strict=True))
    return [
        _as_json(episode, env.goal_type(episode.goal), own, seen.policies, q)
        for episode, own in zip(played, states, strict=True)
    ]


class _Recording:
    """A scorer that remembers its answers."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self.policies: dict[Query, LogPolicy] = {}

    @property
    def version(self) -> int:
        return self._scorer.version

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        policies = self._scorer.log_policy(queries)
        self.policies.update(zip(queries, policies, strict=True))
        return policies


def _as_json(
    episode: Episode,
    goal_type: str,
    states: Sequence[Query],
    policies: dict[Query, LogPolicy],
    q: dict[Query, npt.NDArray[np.float32]],
) -> dict[str, Any]:
    steps = []
    for t, step in enumerate(episode.steps):
        observation, state = episode.observation(t), states[t]
        steps.append(
            {
                "observation": observation.text,
                "actions": list(observation.actions),
                "probabilities": _rounded(np.exp(policies[state])),
                "q": _rounded(q[state]),
                "taken": episode.decisions[t].action,
                "achieved": list(step.achieved),
            }
        )
    return {"goal": episode.goal, "goal_type": goal_type, "success": episode.success, "steps": steps}


def _rounded(values: npt.NDArray[np.float32]) -> list[float]:
    return [round(float(value), _DIGITS) for value in values]
