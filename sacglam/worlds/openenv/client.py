"""Environments on OpenEnv servers: anyone's, which need a describer, and ours, which can be used as they are."""

import json
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import ProxyHandler, build_opener

from typing_extensions import override
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.protocol import State
from websockets.sync.client import connect

from sacglam.envs.base import Split, TextEnv
from sacglam.errors import ConfigError, EnvironmentContractError
from sacglam.types import Observation, Step

ABOUT = "/sacglam"
"""The page on which a server of ours describes its environment."""
TIMEOUT_S = 120.0
"""Time limit of a connection or an answer: some servers start a browser or ask a language model."""
_CLOSE_S = 1.0
_MAX_BYTES = 100 * 2**20  # of an answer, as in OpenEnv's own client
_GONE = ". Is the server running? When it is, a run continues with sacglam train --resume RUN --trust"
_FULL = (
    ". Start the server with more sessions, create_app(..., max_concurrent_envs=N): a check opens 2, a run one for "
    "each of env.copies and up to 64 for an evaluation (docs/guides/openenv.md)"
)


class Session(ABC):
    """A session on a server: one environment there. Requests have time limits, and every failure is explained."""

    def __init__(self, url: str) -> None:
        """Connects with the first request."""
        self.url = url.rstrip("/")
        self._socket: Any = None
        self._begun: tuple[Any, ...] = ()  # the call whose answer is pending

    @abstractmethod
    def _data(self, method: str, *given: Any) -> Mapping[str, Any]:
        """The data that a request sends for a call of `reset` or `step`."""

    def begin_call(self, method: str, *given: Any) -> None:
        """Send the request of the call that comes next, so that the requests of several sessions overlap."""
        if self._begun:  # its caller failed before it asked for the answer
            self._socket.close()
        data = self._data(method, *given)
        with self._explained(method):
            if self._socket is None or self._socket.state is not State.OPEN:
                if method != "reset":
                    raise ConnectionError("the connection was lost, and the episode with it")
                self._socket = _connect(self.url)
                weakref.finalize(self, self._socket.close).atexit = False
            with suppress(ConnectionClosed):  # a server that is full answers and hangs up without being asked
                self._socket.send(json.dumps({"type": method, **({"data": data} if data else {})}))
        self._begun = (method, *given)

    def _ask(self, method: str, *given: Any) -> Mapping[str, Any]:
        """The answer to `reset`, `step` or `state`; an error if there is none, or it is one."""
        if self._begun != (method, *given):
            self.begin_call(method, *given)
        self._begun = ()
        with self._explained(method):
            said = self._socket.recv(TIMEOUT_S)
            answer = json.loads(said)
            if not (isinstance(answer, Mapping) and isinstance(answer.get("data"), Mapping)):
                raise ValueError(f"{said[:200]!r}")
        data: Mapping[str, Any] = answer["data"]
        if answer.get("type") == "error":
            shown = f"{data.get('message')} (code: {data.get('code')}) {data.get('errors', '')}".rstrip()
            raise self._broken(method, f"Server error: {shown}{_FULL if 'CAPACITY' in shown else ''}")
        return data

    @contextmanager
    def _explained(self, method: str) -> Iterator[None]:
        try:
            yield
        except (OSError, WebSocketException, ValueError) as error:
            if self._socket:  # a late answer would be taken for that of another request
                self._socket.close()
            raise self._broken(method, f"{error}{_GONE}") from error

    def _broken(self, method: str, came: str) -> EnvironmentContractError:
        return EnvironmentContractError(f"openenv:{self.url}: expected an answer to {method}, got: {came}")


class RemoteEnv(Session):
    """An environment on anyone's server, with the methods of a gymnasium environment; `info` is an answer's metadata.

    The end of an episode counts as a truncation only if the server's metadata say `truncated`.
    """

    def __init__(self, url: str, **parameters: Any) -> None:
        """`parameters` go with every reset, next to the seed.

        Raises:
            ConfigError: there is no OpenEnv server at `url`.
        """
        super().__init__(url)
        schema = _get(self.url, "/schema")
        if not isinstance(schema, Mapping) or not isinstance(action := schema.get("action"), Mapping):
            raise ConfigError(
                f"openenv:{url}: expected the address of an OpenEnv server, which has a page /schema; this has none. "
                "Leave out paths such as /web"
            )
        self._parameters = parameters
        self._fields = action.get("required") or sorted(action.get("properties", {}).keys() - {"metadata"})

    def reset(self, *, seed: int) -> tuple[Any, Any]:
        """Start an episode; many servers ignore the seed."""
        answer = self._ask("reset", seed)
        return answer.get("observation"), answer.get("metadata") or {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        """Take an action: the value of the only required field, or a mapping of all fields."""
        answer = self._ask("step", action)
        info, done = answer.get("metadata") or {}, bool(answer.get("done"))
        truncated = done and bool(info.get("truncated"))
        return answer.get("observation"), float(answer.get("reward") or 0), done and not truncated, truncated, info

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
    """An environment on a server of ours, which behaves exactly as it would in this process."""

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
        """The environment's own notes."""
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
        achieved, ends = tuple(answer["observation"]["achieved"]), answer["metadata"]
        reward = float(self._goal in achieved)
        return Step(self._observe(answer), reward, achieved, ends["terminated"], ends["truncated"], answer["reward"])

    def _observe(self, answer: Mapping[str, Any]) -> Observation:
        seen = answer["observation"]
        self._actions = tuple(seen["actions"])
        return Observation(seen["text"], self._actions)

    @override
    def _data(self, method: str, *given: Any) -> Mapping[str, Any]:
        if method == "step":
            return {"action": self._actions[given[0]]}
        return dict(zip(("goal", "seed"), given, strict=False))  # nothing for `state`

    @override
    def optimal_length(self) -> int | None:
        return self._ask("state")["optimal_length"]

    @override
    def expert(self) -> int | None:
        return self._ask("state")["expert"]


@cache  # for dozens of copies
def about(url: str) -> Any:
    """What a server of ours says about its environment; None if it is not one of ours.

    Raises:
        ConfigError: nothing answers there.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"expected openenv:http://HOST:PORT or openenv:https://HOST, got 'openenv:{url}'")
    return _get(url.rstrip("/"), ABOUT)


def _get(url: str, path: str) -> Any:
    """The JSON at a path of a server; None if it has no such page."""
    try:
        opener = build_opener(ProxyHandler({} if _local(url) else None))
        with opener.open(f"{url}{path}", timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, HTTPError) and error.code == 404:
            return None
        raise ConfigError(
            f"openenv:{url}: expected an OpenEnv server's JSON at {path}, got: {error}. Is it running there?"
        ) from error


def _connect(url: str) -> Any:
    return connect(
        f"ws{url.removeprefix('http')}/ws",
        proxy=None if _local(url) else True,
        open_timeout=TIMEOUT_S,
        close_timeout=_CLOSE_S,
        ping_interval=None,
        max_size=_MAX_BYTES,
        legacy=True,
    )


def _local(url: str) -> bool:
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
