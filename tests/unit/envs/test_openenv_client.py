"""Sessions on a server that speaks OpenEnv's protocol, and on servers that do not quite: needs no openenv."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from typing_extensions import override

pytest.importorskip("gymnasium", reason="needs the extra openenv")
from websockets.sync.server import Request, Response, ServerConnection, serve

from sacglam.envs import CheckedEnv, foreign_code, make
from sacglam.envs.workers import call_all
from sacglam.errors import ConfigError, EnvironmentContractError
from sacglam.tools.loopback import listen
from sacglam.worlds.openenv import client

GOAL = "Solve the task"
Answer = Callable[[ServerConnection, dict[str, Any]], None]


def climb(socket: ServerConnection, request: dict[str, Any]) -> None:
    """Answer each request with the number of steps so far; the third ends the episode."""
    height = socket.height = 0 if request["type"] == "reset" else socket.height + 1  # type: ignore[attr-defined]
    seen = {"text": f"height {height}", "legal_moves": ["up"]}
    data = {"observation": seen, "reward": float(height == 3), "done": height == 3}
    socket.send(json.dumps({"type": "observation", "data": data}))


@contextmanager
def serving(answer: Answer = climb, port: int = 0) -> Iterator[str]:
    """The name of the environment on a server that answers requests so."""

    def page(socket: ServerConnection, request: Request) -> Response | None:
        found = {"/schema": HTTPStatus.OK, "/sacglam": HTTPStatus.NOT_FOUND}.get(request.path)
        return socket.respond(found, json.dumps({"action": {"required": ["move"]}})) if found else None

    def session(socket: ServerConnection) -> None:
        for message in socket:
            answer(socket, json.loads(message))

    with serve(session, "127.0.0.1", port, process_request=page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"openenv:http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()
            client.about.cache_clear()


def begun(name: str) -> CheckedEnv:
    """A copy with an episode of one step."""
    env = make(name, max_steps=9)
    env.reset(GOAL, 0)
    env.step(0)
    return env


def test_an_episode() -> None:
    with serving() as name:
        env = make(f"{name}/", max_steps=9)  # a slash at the end changes nothing
        seen = env.reset(GOAL, 0)
        steps = [env.step(0) for _ in range(3)]
    assert (seen.text, seen.actions) == ("height 0", ("up",))
    assert [step.observation.text for step in steps] == ["height 1", "height 2", "height 3"]
    assert [(step.reward, step.terminated) for step in steps] == [(0, False), (0, False), (1, True)]


def test_a_server_with_one_task_is_not_reset_a_hundred_times() -> None:
    requests = []

    def count(socket: ServerConnection, request: dict[str, Any]) -> None:
        requests.append(request["type"])
        climb(socket, request)

    with serving(count) as name:
        assert [*make(name, goal="Climb").goals("train")] == ["Climb"]
    assert requests == ["reset"] * 3  # to be described, twice, and for its goal


def test_requests_of_several_copies_are_under_way_at_once() -> None:
    together = threading.Barrier(4)

    def wait(socket: ServerConnection, request: dict[str, Any]) -> None:
        if request["type"] == "step":
            together.wait(30)
        climb(socket, request)

    with serving(wait) as name:
        copies = [make(name, max_steps=9) for _ in range(4)]
        call_all("reset", [(env, (GOAL, 0)) for env in copies])
        assert [step.observation.text for step in call_all("step", [(env, (0,)) for env in copies])] == ["height 1"] * 4


def test_a_call_that_was_begun_and_never_asked_for_is_forgotten() -> None:
    with serving() as name:
        env = begun(name)
        env.begin_call("step", 0)
        assert env.reset(GOAL, 0).text == "height 0"
        assert env.step(0).observation.text == "height 1"


def test_a_session_ends_with_its_copy() -> None:
    closed = threading.Event()

    def notice(socket: ServerConnection, request: dict[str, Any]) -> None:
        climb(socket, request)
        threading.Thread(target=lambda: (socket.wait_closed(), closed.set())).start()  # type: ignore[func-returns-value]

    with serving(notice) as name:
        env = begun(name)
        closed.clear()  # of the copy that collected the goals
        del env
        assert closed.wait(30)


def send(answer: str) -> Answer:
    return lambda socket, request: socket.send(answer) if request["type"] == "step" else climb(socket, request)


ERROR = {"message": "Server at capacity", "code": "CAPACITY_REACHED"}
INVALID = {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": [{"msg": "Field required"}]}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (send("<html>"), "got: Expecting value"),
        (send('["no data"]'), r"got: '\[\"no data\"\]'"),
        (send("{" + " " * 2000 + "}"), "got: .*message too big"),
        (send(json.dumps({"type": "error", "data": ERROR})), r"CAPACITY_REACHED.*max_concurrent_envs=N"),
        (send(json.dumps({"type": "error", "data": INVALID})), r"got: Server error: Invalid message .*Field required"),
        (lambda socket, request: socket.close() if request["type"] == "step" else climb(socket, request), "--resume"),
        (lambda socket, request: None if request["type"] == "step" else climb(socket, request), r"timed out in 0\.5s"),
    ],
    ids=["no JSON", "not the protocol", "too long", "full", "an error", "hung up", "no answer"],
)
def test_an_answer_that_is_none(answer: Answer, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(client, "_MAX_BYTES", 1000)
    with serving(answer) as name:
        env = make(name, max_steps=9)
        env.reset(GOAL, 0)
        with pytest.raises(EnvironmentContractError, match=rf"expected an answer to step, .*{said}"):
            env.step(0)
        assert env.reset(GOAL, 0).text == "height 0"  # in a new session if need be


def test_a_server_that_dies_in_an_episode_and_is_restarted() -> None:
    lost = pytest.raises(EnvironmentContractError, match=r"expected an answer to step, got: .*--resume RUN")
    with serving() as name:
        env, other = begun(name), begun(name)
    with lost:
        env.step(0)
    with pytest.raises(EnvironmentContractError, match=r"answer to reset, got: .*refused.*--resume RUN"):
        env.reset(GOAL, 0)
    with serving(port=int(name.rpartition(":")[2])):
        with lost:
            other.step(0)
        assert other.reset(GOAL, 0).text == "height 0"


def test_an_action_that_cannot_be_sent_names_the_call() -> None:
    with serving() as name:
        env = begun(name)
        with pytest.raises(EnvironmentContractError, match=r"step\(7\) after 1 steps"):
            call_all("step", [(env, (7,))])


def test_nobody_at_the_address() -> None:
    with listen(0) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConfigError, match=rf"openenv:http://127.0.0.1:{port}: expected .* got: .*refused.*running"):
        make(f"openenv:http://127.0.0.1:{port}")


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ws://127.0.0.1:8000", "", "file:///etc/passwd"])
def test_no_address(url: str) -> None:
    with pytest.raises(ConfigError, match="expected openenv:http://HOST:PORT"):
        make(f"openenv:{url}")


@pytest.mark.parametrize(
    ("code", "body", "said"),
    [(404, "", "has none"), (500, "", "500"), (200, "<html>", "got: Expecting value"), (200, "[1]", "has none")],
)
def test_another_server_at_the_address(code: int, body: str, said: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404 if body == "[1]" and self.path == "/sacglam" else code)
            self.end_headers()
            self.wfile.write(body.encode())

        @override
        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=partial(server.serve_forever, 0.01), daemon=True).start()
        with pytest.raises(ConfigError, match=f"expected .* OpenEnv server.*{said}"):
            make(f"openenv:http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()


def test_an_address_is_foreign() -> None:
    assert foreign_code("openenv:http://a", {"describer": "b:C"}) == ["openenv:http://a", "b:C"]
