"""Plays episodes to keep as demonstrations, with an environment's expert or planner, or any policy."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np

from sacglam.clock import PhaseClock
from sacglam.envs import CheckedEnv
from sacglam.errors import ConfigError
from sacglam.goals import GoalSource
from sacglam.policy import Policy, SamplingPolicy
from sacglam.prompt import Prompt, query
from sacglam.rollout import Rollout
from sacglam.scoring.base import Scorer
from sacglam.types import Episode, LogPolicy, Query

_COPIES = 64
_RECORDED = 0x2EC02D  # a separate stream, so that a run with the same seed plays other episodes
_ASKED = 16  # most goals for which an expert or a plan is looked for
_PATIENCE = 100  # episodes played per requested success before giving up


class Planner:
    """Takes an action that is good in the current state of `env`, or any action if none is known to be.

    A good action is the expert's or, without an expert, the first that leaves fewer steps when tried in a second copy.
    """

    version = 0

    def __init__(self, env: CheckedEnv, trial: CheckedEnv | None) -> None:
        """`trial` is the second copy; None: the environment does not repeat itself, so only an expert can help."""
        self._env, self._trial = env, trial

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        """The policy in the current state only."""
        actions = len(queries[0].actions)
        best = self._best(actions)
        policy = np.full(actions, -np.log(actions) if best is None else -np.inf, dtype=np.float32)
        if best is not None:
            policy[best] = 0.0
        return [policy]

    def _best(self, actions: int) -> int | None:
        advised = self._env.expert()
        if advised is not None or self._trial is None:
            return advised
        left = self._env.optimal_length()
        return next((a for a in range(actions) if self._left_after(self._trial, a) < left), None) if left else None

    def _left_after(self, trial: CheckedEnv, action: int) -> float:
        goal, seed, taken = self._env.so_far()
        trial.reset(goal, seed)
        *_, step = map(trial.step, (*taken, action))
        if step.terminated or step.truncated:
            return 0.0 if goal in step.achieved else np.inf
        left = trial.optimal_length()
        return np.inf if left is None else left


def _noisy(policy: SamplingPolicy, noise: float) -> Policy:
    """Samples from (1 - noise) pi + noise / |A|, with one draw of `policy`."""

    def drawn(log_pi: LogPolicy) -> int:
        with np.errstate(divide="ignore"):  # log 0 if noise is 0 or 1
            kept, uniform = np.log1p(-noise), np.log(noise / len(log_pi))
        return policy(np.logaddexp(log_pi + kept, uniform).astype(np.float32))

    return drawn


def record(
    make_env: Callable[[], CheckedEnv],
    scorer: Scorer | None,
    episodes: int,
    *,
    seed: int = 0,
    noise: float = 0.0,
    success_only: bool = False,
    prompt: Prompt = query,
    repeats: bool = True,
) -> Iterator[Episode]:
    """Play episodes, or successful ones only, towards uniformly drawn training goals.

    The policy is that of `scorer` (None: the `Planner`), sampled, with a share `noise` of its actions drawn uniformly.

    Raises:
        ConfigError: there is no planner, or not one in a hundred episodes succeeds.
    """
    policy_rng, starts_rng = map(np.random.default_rng, np.random.SeedSequence([seed, _RECORDED]).spawn(2))
    envs = [make_env() for _ in range(min(_COPIES, episodes) if scorer else 1)]
    goals = envs[0].goals("train")
    starts, policy = GoalSource(goals, starts_rng), _noisy(SamplingPolicy(policy_rng), noise)
    if scorer is None:
        scorer = Planner(envs[0], make_env() if repeats else None)
        for goal in goals[:: len(goals) // _ASKED + 1]:
            envs[0].reset(goal, 0)
            if envs[0].expert() is not None or (repeats and envs[0].optimal_length() is not None):
                break
        else:
            raise ConfigError(
                f"environment {envs[0].name!r} has neither an expert nor a planner: expected a method `expert` or, if "
                "it repeats, `optimal_length` (docs/start/demonstrations.md); or take --policy random or agent"
            )
    kept = played = 0
    while kept < episodes:
        # As many as are missing, each played to its end: otherwise short episodes would be over-represented.
        some = iter(list(islice(starts, episodes - kept)))
        rollout = Rollout(envs, scorer, policy, some, PhaseClock(), prompt)
        for episode in (each for ended in rollout.drain() for each in ended):
            played += 1
            if episode.success or not success_only:
                kept += 1
                yield episode
        if kept < episodes <= played // _PATIENCE:
            raise ConfigError(
                f"expected {episodes:,} successful episodes, got {kept:,} of {played:,}; leave out --success-only, or "
                "take another --policy"
            )
