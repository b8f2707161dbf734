"""Both ends of the wire: sessions on OpenEnv servers, and a server of our environments. Only this file imports it."""

import asyncio
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache, partial
from random import Random, SystemRandom
from typing import Any, get_args

from openenv.core import GenericEnvClient
from openenv.core.env_server import Action, Environment, State, create_app
from openenv.core.env_server import Observation as Answer
from pydantic import Field

from sacglam.envs.base import Split
from sacglam.envs.registry import make
from sacglam.errors import ConfigError, EnvironmentContractError, SacglamError
from sacglam.types import Observation

CONNECT_S = 10.0
ANSWER_S = 120.0
"""Time limit of an answer: some servers start a browser or ask a language model."""
ABOUT = "/sacglam"
"""Where a server of ours says what `openenv:URL` needs to give the same environment."""
_SESSIONS = 1024  # at a time, on a server of ours
_SPLITS: tuple[Split, ...] = get_args(Split)
_DEAD = ". Is the server running? When it is, a run continues with sacglam train --resume RUN --trust"
_FULL = (
    " Start the server with a larger max_concurrent_envs: a run opens a session for each of env.copies, and up to 64 "
    "for an evaluation"
)


class Session(ABC):
    """A session on a server: one environment there. Requests have time limits, and every failure is explained."""

    def __init__(self, url: str) -> None:
        """Connects with the first request."""
        self.url = url
        self._client = GenericEnvClient(url, CONNECT_S, ANSWER_S, websocket_ping_interval_s=None)
        self._socket: Any = None  # that of the episode
        self._begun: tuple[Any, Future[Any]] | None = None
        weakref.finalize(self, _submit, self._client.close).atexit = False

    @abstractmethod
    def _data(self, method: str, *given: Any) -> Mapping[str, Any]:
        """What a request sends for a call of `reset` or `step`."""

    def begin_call(self, method: str, *given: Any) -> None:
        """Start the call that follows, so that those of several sessions overlap."""
        self._begun = (method, given), _submit(partial(self._request, method, self._data(method, *given)))

    def _ask(self, method: str, *given: Any) -> Any:
        """The answer to `reset`, `step` or `state`.

        Raises:
            EnvironmentContractError: there is none, or it is an error.
        """
        begun, answer = self._begun or (None, None)
        if answer and begun != (method, given):  # its caller failed before it asked
            answer.exception()
        if not answer or begun != (method, given):
            answer = _submit(partial(self._request, method, self._data(method, *given)))
        self._begun = None
        try:
            return answer.result()
        except Exception as error:  # the client's, of any kind
            came = str(error) or f"none within {ANSWER_S:g} s"
            advice = _FULL if "CAPACITY" in came else "" if came.startswith("Server error") else _DEAD
            raise EnvironmentContractError(
                f"openenv:{self.url}: expected an answer to {method}, got: {came}{advice}"
            ) from error

    async def _request(self, method: str, data: Mapping[str, Any]) -> Any:
        client = self._client
        await client.connect()
        if method == "reset":
            self._socket = client._ws
            return await client.reset(**data)
        if client._ws is not self._socket:  # it has connected again, to another environment
            raise ConnectionError("the connection was lost, and the episode with it")
        return await (client.step(data) if method == "step" else client.state())


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process's sessions, in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def _submit(request: Callable[[], Any]) -> "Future[Any]":
    async def call() -> Any:
        return await request()

    return asyncio.run_coroutine_threadsafe(call(), _loop())


class TextAction(Action):  # type: ignore[misc]
    """An action by its text."""

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
        """Start the episode of a goal, or of that with this index in the split, or of one that the seed draws."""
        seed = SystemRandom().randrange(2**31) if seed is None else seed
        if goal is None:
            goals = self._goals(split)
            goal = Random(seed).choice(goals) if index is None else goals[index]
        seen = self._env.reset(goal, seed)
        self._state = State(episode_id=episode_id, goal=goal, seed=seed)
        return self._answer(seen, goal)

    def step(self, action: TextAction, timeout_s: float | None = None) -> TextAnswer:
        """Take an action that the state offers; any other changes nothing, and is named in the metadata."""
        last = self._last
        if not last.actions:
            raise ConfigError("expected a reset before this step: no episode is running")
        if action.action not in last.actions:
            unknown = {**last.metadata, "unknown_action": action.action}
            return TextAnswer(**{**dict(last), "reward": 0.0, "achieved": (), "metadata": unknown})
        step = self._env.step(last.actions.index(action.action))
        self._state.step_count += 1
        ends = (step.terminated, step.truncated)
        return self._answer(step.observation, last.goal, *ends, achieved=step.achieved, reward=step.reward)

    def _answer(
        self, seen: Observation, goal: str, terminated: bool = False, truncated: bool = False, **more: Any
    ) -> TextAnswer:
        ends = {"terminated": terminated, "truncated": truncated}
        over = terminated or truncated
        self._last = TextAnswer(text=seen.text, goal=goal, actions=seen.actions, done=over, metadata=ends, **more)
        return self._last

    @property
    def state(self) -> State:
        """The episode's goal and seed, the fewest steps to the goal and a good action; the last two as far as known."""
        if not self._last.actions:
            return self._state
        known = {"optimal_length": self._env.optimal_length(), "expert": self._env.expert()}
        return self._state.model_copy(update=known)

    def _goals(self, split: str) -> Sequence[str]:
        for each in _SPLITS:
            if each == split:
                return self._env.goals(each)
        raise ConfigError(f"expected a split of {', '.join(_SPLITS)}, got {split!r}")

    def list_splits(self) -> list[str]:
        """The splits that have goals."""
        return [split for split in _SPLITS if self._goals(split)]

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """The goals of a split with their types."""
        kind = self._env.goal_type
        return [{"index": i, "goal": goal, "type": kind(goal)} for i, goal in enumerate(self._goals(split))]

    def num_tasks(self, split: str) -> int:
        """Number of goals in a split."""
        return len(self._goals(split))

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """One of the goals of a split."""
        return self.list_tasks(split)[index]

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        """A slice of the goals of a split."""
        return self.list_tasks(split)[start:stop]


def application(name: str, options: Mapping[str, Any]) -> Any:
    """The ASGI application of a server of the environment that `make(name, **options)` makes."""
    env = make(name, **options)
    factory = partial(ServedEnvironment, name, options)
    app = create_app(factory, TextAction, TextAnswer, env_name=name, max_concurrent_envs=_SESSIONS)

    async def about() -> dict[str, Any]:
        goals = {split: {goal: env.goal_type(goal) for goal in env.goals(split)} for split in _SPLITS}
        return {"goals": goals, "tasks": list(env.tasks()), "notes": list(env.notes())}

    async def goal_type(goal: str) -> dict[str, str]:
        try:
            return {"goal_type": env.goal_type(goal)}
        except SacglamError as error:
            return {"error": str(error)}

    app.add_api_route(ABOUT, about)
    app.add_api_route(f"{ABOUT}/goal_type", goal_type)
    return app
