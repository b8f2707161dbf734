"""What is on an OpenEnv server as an environment of ours: the same one if it is ours, else one to be described."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import ProxyHandler, build_opener

from typing_extensions import override

from sacglam.envs.base import Split, TextEnv
from sacglam.errors import ConfigError
from sacglam.types import Observation, Step
from sacglam.worlds.openenv.wire import ABOUT, CONNECT_S, Session


def _get(url: str, path: str) -> Any:
    """The JSON at a path of a server; None if it has no such page.

    Raises:
        ConfigError: nothing answers there, or with something else.
    """
    local = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    try:
        with build_opener(ProxyHandler({} if local else None)).open(f"{url}{path}", timeout=CONNECT_S) as answer:
            return json.load(answer)
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, HTTPError) and error.code == 404:
            return None
        raise ConfigError(
            f"openenv:{url}: expected an OpenEnv server's JSON at {path}, got: {error}. Is it running there?"
        ) from error


@cache  # for dozens of copies
def about(url: str) -> Any:
    """What a server of ours says about its environment; None if it is not one of ours.

    Raises:
        ConfigError: nothing answers there.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"expected openenv:http://HOST:PORT or openenv:https://HOST, got 'openenv:{url}'")
    return _get(url, ABOUT)


class RemoteEnv(Session):
    """An environment on anyone's server, with the methods of a gymnasium environment; `info` is an answer's metadata.

    A server says which ends are truncations only if its metadata have `truncated`.
    """

    def __init__(self, url: str, **parameters: Any) -> None:
        """`parameters` go with every reset, next to the seed.

        Raises:
            ConfigError: there is no OpenEnv server at `url`.
        """
        schema = _get(url, "/schema")
        if not isinstance(schema, Mapping) or "action" not in schema:
            raise ConfigError(
                f"openenv:{url}: expected the address of an OpenEnv server, which has a page /schema; this has none. "
                "Leave out paths such as /web"
            )
        super().__init__(url)
        self._parameters, action = parameters, schema["action"]
        self._fields = action.get("required") or [*action.get("properties", {}).keys() - {"metadata"}]

    def reset(self, *, seed: int) -> tuple[Any, Any]:
        """Start an episode; many servers ignore the seed."""
        answer = self._ask("reset", seed)
        return answer.observation, answer.metadata or {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        """Take an action: the value of the only required field, or a mapping of all fields."""
        answer = self._ask("step", action)
        info = answer.metadata or {}
        truncated = answer.done and bool(info.get("truncated"))
        return answer.observation, float(answer.reward or 0), answer.done and not truncated, truncated, info

    @override
    def _data(self, method: str, *given: Any) -> Mapping[str, Any]:
        if method == "reset":
            return {**self._parameters, "seed": given[0]}
        if isinstance(given[0], Mapping):
            return given[0]
        if len(self._fields) != 1:
            raise ConfigError(
                f"openenv:{self.url}: expected actions with one required field, got {sorted(self._fields)}; write a "
                "describer whose actions are mappings of all fields (docs/guides/openenv.md)"
            )
        return {self._fields[0]: given[0]}


class Served(Session, TextEnv):
    """An environment on a server of ours: the same as in this process, to the last text."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._about = about(url)
        self._types = {goal: str(kind) for goals in self._about["goals"].values() for goal, kind in goals.items()}
        self._goal, self._actions = "", tuple[str, ...]()

    @override
    def goals(self, split: Split) -> Sequence[str]:
        return list(self._about["goals"][split])

    def tasks(self) -> Sequence[str]:
        """The goals of evaluations."""
        return list(self._about["tasks"])

    def notes(self) -> Sequence[str]:
        """The environment's own."""
        return list(self._about["notes"])

    @override
    def goal_type(self, goal: str) -> str:
        if goal not in self._types:
            answer = _get(self.url, f"{ABOUT}/goal_type?goal={quote(goal)}")
            if "error" in answer:
                raise ConfigError(answer["error"])
            self._types[goal] = answer["goal_type"]
        return self._types[goal]

    @override
    def reset(self, goal: str, seed: int) -> Observation:
        self._goal = goal
        return self._observe(self._ask("reset", goal, seed))

    @override
    def step(self, action: int) -> Step:
        answer = self._ask("step", action)
        achieved, ends = tuple(answer.observation["achieved"]), answer.metadata
        reward = float(self._goal in achieved)
        return Step(self._observe(answer), reward, achieved, ends["terminated"], ends["truncated"], answer.reward)

    def _observe(self, answer: Any) -> Observation:
        self._actions = tuple(answer.observation["actions"])
        return Observation(answer.observation["text"], self._actions)

    @override
    def _data(self, method: str, *given: Any) -> Mapping[str, Any]:
        if method == "step":
            return {"action": self._actions[given[0]]}
        return dict(zip(("goal", "seed"), given, strict=False))  # nothing for `state`

    @override
    def optimal_length(self) -> int | None:
        length: int | None = self._ask("state")["optimal_length"]
        return length

    @override
    def expert(self) -> int | None:
        action: int | None = self._ask("state")["expert"]
        return action
