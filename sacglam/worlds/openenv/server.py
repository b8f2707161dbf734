"""Serves our environments over OpenEnv's protocol. Only this file imports openenv."""

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random, SystemRandom
from typing import Any

from fastapi.responses import JSONResponse
from openenv.core.env_server import Action, Environment, State, create_app
from openenv.core.env_server import Observation as Answer
from pydantic import Field

from sacglam.envs.base import SPLITS
from sacglam.envs.registry import make
from sacglam.errors import ConfigError, SacglamError
from sacglam.types import Observation
from sacglam.worlds.openenv.client import ABOUT

_SESSIONS = 1024  # at the same time


class TextAction(Action):  # type: ignore[misc]
    """An action, given by its text."""

    action: str = Field(description="One of the observation's actions, word for word; any other text changes nothing.")


class TextAnswer(Answer):  # type: ignore[misc]
    """An observation. Its metadata say whether the episode `terminated` or was `truncated`."""

    text: str
    goal: str
    actions: Sequence[str]
    achieved: Sequence[str] = ()


class ServedEnvironment(Environment):  # type: ignore[misc]
    """The environment of a session on a server of ours."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._env = make(name, **options).rewarding(True)
        self._state, self._last = State(), TextAnswer(text="", goal="", actions=())

    def reset(
        self, seed: Any = None, episode_id: Any = None, split: Any = "train", index: Any = None, goal: Any = None
    ) -> TextAnswer:
        """Start an episode of `goal`, or else of the goal at `index` in `split`, or else of one drawn with `seed`."""
        seed = SystemRandom().randrange(2**31) if seed is None else seed
        if not (isinstance(seed, int) and isinstance(goal, str | None)):
            raise ConfigError(f"expected a whole number as the seed and a text as the goal, got {seed!r} and {goal!r}")
        if goal is None:
            goals = self._goals(split)
            goal = Random(seed).choice(goals) if index is None else self.get_task(split, index)["goal"]
        seen = self._env.reset(goal, seed)
        self._state = State(episode_id=episode_id, goal=goal, seed=seed)
        return self._answer(seen)

    def step(self, action: TextAction, timeout_s: float | None = None) -> TextAnswer:
        """Take an action that the state offers; any other changes nothing, and is named in the metadata."""
        last = self._last
        if not last.actions:
            raise ConfigError("expected a reset before this step: no episode is running")
        if action.action not in last.actions:
            metadata = {**last.metadata, "unknown_action": action.action}
            return last.model_copy(update={"reward": 0.0, "achieved": (), "metadata": metadata})
        step = self._env.step(last.actions.index(action.action))
        self._state.step_count += 1
        return self._answer(
            step.observation, step.terminated, step.truncated, achieved=step.achieved, reward=step.reward
        )

    def _answer(self, seen: Observation, terminated: bool = False, truncated: bool = False, **more: Any) -> TextAnswer:
        self._last = TextAnswer(
            text=seen.text,
            goal=self._state.goal,
            actions=seen.actions,
            done=terminated or truncated,
            metadata={"terminated": terminated, "truncated": truncated},
            **more,
        )
        return self._last

    @property
    def state(self) -> State:
        """The episode's goal and seed and, if known, the fewest steps to the goal and a good action."""
        if not self._last.actions:
            return self._state
        known = {"optimal_length": self._env.optimal_length(), "expert": self._env.expert()}
        return self._state.model_copy(update=known)

    def _goals(self, split: Any) -> Sequence[str]:
        if split not in self.list_splits():
            raise ConfigError(f"expected a split of {', '.join(self.list_splits())}, got {split!r}")
        return self._env.goals(split)

    def list_splits(self) -> list[str]:
        """The splits that have goals."""
        return [split for split in SPLITS if self._env.goals(split)]

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """The goals of a split with their types."""
        return [self.get_task(split, index) for index in range(self.num_tasks(split))]

    def num_tasks(self, split: str) -> int:
        """Number of goals in a split."""
        return len(self._goals(split))

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """One of the goals of a split."""
        goals = self._goals(split)
        if not (isinstance(index, int) and 0 <= index < len(goals)):
            raise ConfigError(f"expected an index from 0 to {len(goals) - 1}, got {index!r}")
        return {"index": index, "goal": goals[index], "type": self._env.goal_type(goals[index])}

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        """A slice of the goals of a split."""
        return self.list_tasks(split)[start:stop]


def application(name: str, options: Mapping[str, Any]) -> Any:
    """An ASGI application that serves the environment `make(name, **options)`."""
    env = make(name, **options)
    factory = partial(ServedEnvironment, name, options)
    app = create_app(factory, TextAction, TextAnswer, env_name=name, max_concurrent_envs=_SESSIONS)

    goals = {split: {goal: env.goal_type(goal) for goal in env.goals(split)} for split in SPLITS}
    description = {"goals": goals, "tasks": list(env.tasks()), "notes": list(env.notes())}

    async def refuse(_: Any, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 400)

    async def about() -> dict[str, Any]:
        return description

    async def goal_type(goal: str) -> dict[str, str]:
        try:
            return {"goal_type": env.goal_type(goal)}
        except SacglamError as error:
            return {"error": str(error)}

    app.add_exception_handler(ConfigError, refuse)  # a bad request, not a server error
    app.add_api_route(ABOUT, about)
    app.add_api_route(f"{ABOUT}/goal_type", goal_type)
    return app
