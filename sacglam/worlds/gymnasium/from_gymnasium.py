"""A gymnasium environment as a text environment."""

import importlib
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from itertools import chain, islice
from random import Random
from typing import Any

import gymnasium
from typing_extensions import override

from sacglam.envs.base import BaseEnv, Split
from sacglam.errors import ConfigError, EnvironmentContractError
from sacglam.plugins import find
from sacglam.types import Observation, Step
from sacglam.worlds.gymnasium.describers import Describer
from sacglam.worlds.gymnasium.toy_text import describer_of

_TRIES = 100  # random seeds to try for an episode of a task, before falling back to the seed at which it was found
# If that sets another, the seed decides nothing: then as many more for each reset from which tasks were collected.


class GymnasiumWorld(BaseEnv[None]):
    """A gymnasium environment as text, written by a `Describer`.

    The episode for goal g and seed s begins with `reset(seed=s)`. If that sets another task than g, further seeds,
    drawn from g and s, are tried in turn until a reset sets g. The reward is 1 at the step that achieves g, which
    ends the episode. The environment's own reward indicates success if nothing else does, and is learnt from only
    with `env.reward: environment`.

    Args:
        name: `gymnasium:` and an id of gymnasium's, `module:Id-v0`, or `module:factory`; or `openenv:` and an address.
        kwargs: keyword arguments of the environment, or of every reset on an OpenEnv server.
        text, goal, actions, achieved, success: places such as `info.admissible_commands`, see docs/guides/gymnasium.md.
            Also a text for `goal`, names of `Discrete` actions for `actions`,
            and `reward`, `terminated` or `never` for `success`.
        describer: a subclass of `Describer`, as `package.module:Class`.
        practice: also train on the describer's other goals, not only on the environment's own tasks.
        max_steps: steps until an episode is truncated; by default the environment's own limit.
        resets: number of resets from which the environment's tasks are collected.

    Raises:
        ConfigError: the environment cannot be made or described.
    """

    def __init__(
        self,
        name: str,
        *,
        kwargs: Mapping[str, Any] | None = None,
        text: str | None = None,
        goal: str | None = None,
        actions: str | Sequence[str] | None = None,
        achieved: str | None = None,
        success: str | None = None,
        describer: str | None = None,
        practice: bool = False,
        max_steps: int | None = None,
        resets: int = 100,
    ) -> None:
        super().__init__(name, max_steps)
        self._check_range("resets", resets, 1)
        given = dict(text=text, goal=goal, actions=actions, achieved=achieved, success=success)
        options = {facet: option for facet, option in given.items() if option is not None}
        settings = json.dumps([kwargs or {}, describer, options])
        self._resets = resets
        self._env, self._describer = _open(name, settings)
        self._tasks = _tasks(name, settings, resets)
        self._describer.tasks = {task: first for task, (_, first) in self._tasks.items()}
        self._space = dict.fromkeys([*self._tasks, *self._describer.goals()])
        self._practice = practice and len(self._space) > len(self._tasks)
        self._actions: Mapping[str, Any] = {}

    @override
    def goals(self, split: Split) -> Sequence[str]:
        return () if split == "heldout" else list(self._space if self._practice else self._tasks)

    def tasks(self) -> Sequence[str]:
        """The environment's own goals, which evaluation is about."""
        return list(self._tasks)

    @override
    def goal_type(self, goal: str) -> str:
        return "practice" if self._practice and goal not in self._tasks else "task"

    @override
    def _start(self, wanted: None, rng: Random) -> Observation:
        """Start with the first seed whose task is the goal, or the episode's own if the describer adds the goal."""
        goal, seeds = self._goal, iter([self._seed])
        if goal in self._tasks:
            drawn = (rng.randrange(2**31) for _ in range(_TRIES * (1 + self._resets)))
            seeds = chain(seeds, islice(drawn, _TRIES), [self._tasks[goal][0]], drawn)
        for seed in seeds:
            obs, info = self._env.reset(seed=seed)
            if goal not in self._tasks or self._describer.goal(obs, info) == goal:
                break
        else:
            raise EnvironmentContractError(
                f"{self.name}: the seed that gave the goal {goal!r} now gives another, as do {_TRIES * self._resets:,} "
                "more resets; draw goals from a generator that reset seeds with its seed"
            )
        self._rewarded = True  # in every step of the episode so far
        # What already holds at the start is not an achievement, unless it is the episode's goal.
        self._achieved = set(self._describer.achieved(obs, info) or ()) - {goal}
        return self._observe(obs, info)

    def begin_call(self, method: str, *given: Any) -> None:
        """Send the request of the call that comes next, if the environment is on a server."""
        if self.name.startswith("openenv:"):
            self._env.begin_call(method, given[1] if method == "reset" else self._argument(given[0]))

    def _argument(self, action: int) -> Any:
        return list(self._actions.values())[action]

    @override
    def step(self, action: int) -> Step:
        obs, reward, terminated, truncated, info = self._env.step(self._argument(action))
        achieved = self._achievements(obs, info, float(reward), bool(terminated))
        self._rewarded = self._rewarded and reward > 0
        over = terminated or truncated or self._goal in achieved or self._steps + 1 == self._max_steps
        seen = self._observe(obs, info, over)
        return self._outcome(seen, achieved, bool(terminated), bool(truncated), float(reward))

    @override
    def close(self) -> None:
        _close(self._env)

    def _achievements(self, obs: Any, info: Any, reward: float, terminated: bool) -> list[str]:
        """The goals that hold; `success` counts if no achieved goals are known, or if the option was set."""
        achieved = self._describer.achieved(obs, info)
        goals = list(achieved or ())
        asked = achieved is None or "success" in self._describer.origin
        if asked and self._goal in self._tasks and self._describer.success(obs, info, reward, terminated):
            by_reward = not self._describer.success(obs, info, 0.0, terminated)
            if by_reward and self._rewarded and self._steps and "success" not in self._describer.origin:
                raise ConfigError(
                    f"{self.name}: success cannot be guessed from the reward at the end, since every step has one; "
                    "set the option success to its place, to reward or to terminated; or, with env.reward=environment, "
                    "to never"
                )
            goals.append(self._goal)
        return goals

    def _observe(self, obs: Any, info: Any, over: bool = False) -> Observation:
        # Some environments list no actions once they have ended, but the policy is also needed in a truncated state.
        self._actions = self._describer.actions(obs, info) or (self._actions if over else {})
        return Observation(self._describer.text(obs, info), tuple(self._actions))

    def notes(self) -> list[str]:
        """Where each facet comes from, what was guessed, and what is missing, for the user."""
        origin = dict(self._describer.origin)
        if not {"achieved", "success"} & origin.keys():
            origin["success"] = "info.is_success, .success or .won, else a positive reward at the end (guessed)"
        by_origin = {place: [facet for facet in origin if origin[facet] == place] for place in origin.values()}
        lines = [
            "; ".join(f"{', '.join(facets)} from {place}" for place, facets in by_origin.items())
            + ". Unless env.reward is environment, the reward is 1 for the goal",
        ]
        if not self._describer.one_task:
            lines.append(f"goals in {self._resets} resets: {len(self._tasks):,}, such as {next(iter(self._tasks))!r}")
        if "achieved" not in origin and len(self._space) > 1:
            lines.append("hindsight has nothing to relabel: set the option achieved, or define it in a describer")
        if self._max_steps is None and getattr(getattr(self._env, "spec", None), "max_episode_steps", None) is None:
            lines.append("no step limit is known: set the option max_steps, unless every episode ends")
        return [f"{self.name}: {line}" for line in lines]


def _open(name: str, settings: str) -> tuple[Any, Describer]:
    """A new environment and its describer."""
    kwargs, described_by, options = json.loads(settings)
    kind, _, id = name.partition(":")
    module, _, attribute = id.rpartition(":")
    try:
        if kind == "openenv":
            env: Any = importlib.import_module("sacglam.worlds.openenv").RemoteEnv(id, **kwargs)
        elif module and attribute.isidentifier() and hasattr(importlib.import_module(module), attribute):
            env = find(id, "environment")(**kwargs)
        else:  # without gymnasium's check, since ours plays whole episodes
            env = gymnasium.make(id, disable_env_checker=True, **kwargs)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise ConfigError(f"environment {name!r} cannot be made: {error}") from error
    found: Any = find(described_by, "describer") if described_by else None
    describer = found or describer_of(getattr(env, "unwrapped", env))
    if not (isinstance(describer, type) and issubclass(describer, Describer)):
        raise ConfigError(f"expected the describer {described_by!r} to be a subclass of Describer, got {describer!r}")
    try:
        return env, describer(env, options, *env.reset(seed=0))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


@cache  # since dozens of copies search for the same tasks
def _tasks(name: str, settings: str, resets: int) -> dict[str, tuple[int, Any]]:
    """The tasks that resets with the seeds 0, 1, ... give: the first seed of each, and its observation."""
    env, describer = _open(name, settings)
    tasks: dict[str, tuple[int, Any]] = {}
    for seed in range(1 if describer.one_task else resets):
        obs, info = env.reset(seed=seed)
        tasks.setdefault(describer.goal(obs, info), (seed, deepcopy(obs)))
    _close(env)
    return tasks


def _close(env: Any) -> None:
    if close := getattr(env, "close", None):  # a class with `reset` and `step` is enough
        close()
