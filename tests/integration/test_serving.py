"""`sacglam serve`: it answers as the agent does, plays episodes, and refuses what is not right with the reason."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sacglam.agent import Agent, load_agent
from sacglam.collector import build_env
from sacglam.tools.serving.server import Server
from tests.browser import browser
from tests.conftest import sacglam
from tests.integration.processes import listening_beyond_loopback, running

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
JSON = {"Content-Type": "application/json"}
STATE = {"goal": "Grasp red cat", "observation": "You see: red cat", "actions": ["Grasp", "Go to red cat"], "past": []}


@pytest.fixture(scope="module")
def agent(tiny_run: Path) -> Agent:
    return load_agent(tiny_run, "cpu")


@pytest.fixture(scope="module")
def server(agent: Agent) -> Iterator[Server]:
    with Server(0, "tiny", agent) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield served
        served.shutdown()


def post(server: Server, path: str, body: Any, headers: dict[str, str] = JSON) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"{server.address}{path}", data, headers)
    try:
        with OPENER.open(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def raw(server: Server, text: bytes) -> tuple[int, str]:
    """The status and body of the answer to anything."""
    with socket.create_connection(server.server_address, timeout=30) as connection:
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as answer:
            found = answer.read().decode()
    head, _, body = found.partition("\r\n\r\n")
    return int(head.split()[1]), body


def test_it_answers_as_the_agent_does_to_many_clients_at_once(server: Server, agent: Agent) -> None:
    goals = build_env(agent.config).goals("train")[:24]
    env = build_env(agent.config)
    asked = []
    for seed, goal in enumerate(goals):
        state = env.reset(goal, seed)
        past = [(state.text, state.actions[0])] if seed % 2 else []
        asked.append({"goal": goal, "observation": state.text, "actions": list(state.actions), "past": past})
    with ThreadPoolExecutor(24) as pool:
        together = list(pool.map(lambda body: post(server, "/api/act", body), asked))
    for body, (code, answer) in zip(asked, together, strict=True):
        place = (body["observation"], body["goal"], body["actions"], body["past"])
        assert code == 200
        assert answer["probabilities"] == pytest.approx(agent.probabilities(*place), abs=1e-6)
        assert answer["q"] == pytest.approx(agent.q_values(*place), abs=1e-5)
        assert answer["action"] == max(answer["probabilities"], key=answer["probabilities"].__getitem__)


def test_an_episode_is_played_undone_and_played_again(server: Server, agent: Agent) -> None:
    env = build_env(agent.config)
    goal, actions = env.goals("train")[3], []
    state = env.reset(goal, 5)
    for t in range(6):
        code, answer = post(server, "/api/play", {"goal": goal, "seed": 5, "actions": actions})
        assert (code, answer["observation"], answer["actions"]) == (200, state.text, list(state.actions))
        if t == 3:  # another episode in between
            assert post(server, "/api/play", {"goal": env.goals("train")[0], "seed": 1, "actions": [0]})[0] == 200
        step = env.step(action := t % len(state.actions))
        actions.append(action)
        state = step.observation
        if step.terminated or step.truncated:
            break
    code, answer = post(server, "/api/play", {"goal": goal, "seed": 5, "actions": actions})
    assert answer["achieved"] == list(step.achieved)
    assert (answer["over"], answer["success"]) == (step.terminated or step.truncated, goal in step.achieved)
    assert post(server, "/api/play", {"goal": goal, "seed": 5, "actions": actions[:1]})[0] == 200
    goals = json.load(OPENER.open(f"{server.address}/api/goals"))
    assert goals == {"title": "tiny", "train": list(env.goals("train")), "heldout": list(env.goals("heldout"))}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "Invalid JSON"),
        (b"\xff\xfe", "Invalid JSON"),
        (b"[" * 100_000, "Invalid JSON"),
        (b"[]", "body"),
        ({**STATE, "actions": []}, "actions"),
        ({**STATE, "actions": ["Grasp", "Grasp"]}, "Grasp"),
        ({**STATE, "actions": "Grasp"}, "actions"),
        ({**STATE, "actions": ["x"] * 1001}, "actions"),
        ({**STATE, "goal": None}, "goal"),
        ({**STATE, "goal": 3}, "goal"),
        ({**STATE, "past": [["only one"]]}, "past"),
        ({**STATE, "past": [{}]}, "past"),
        ({**STATE, "more": 1}, "more"),
        ({"goal": "x"}, "observation"),
        (json.dumps(STATE).replace("You see", "\\ud800").encode(), ""),
        ({**STATE, "observation": "word " * 19_000}, ""),
        ({**STATE, "actions": ["Grasp", ""]}, ""),
    ],
)
def test_a_wrong_question_gets_the_reason(body: Any, said: str, server: Server) -> None:
    code, answer = post(server, "/api/act", body)
    assert code == 400
    assert said in answer["error"]
    assert "Traceback" not in answer["error"]
    assert post(server, "/api/act", STATE)[0] == 200  # and others still get their answers


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"goal": "no such", "seed": 0, "actions": []}, "expected a goal"),
        ({"goal": "", "seed": -1, "actions": []}, "seed"),
        ({"goal": "", "seed": 2**60, "actions": []}, "seed"),
        ({"goal": "GOAL", "seed": 0, "actions": [999]}, "expected the number of an action"),
        ({"goal": "GOAL", "seed": 0, "actions": [-1]}, "actions"),
        ({"goal": "GOAL", "seed": 0, "actions": [0.5]}, "actions"),
        ({"goal": "GOAL", "seed": 0, "actions": [True]}, "actions"),
        ({"goal": "GOAL", "seed": 0, "actions": [0] * 5000}, "expected the number of an action"),
    ],
)
def test_a_wrong_episode_gets_the_reason(body: dict[str, Any], said: str, server: Server, agent: Agent) -> None:
    goal = build_env(agent.config).goals("train")[0]
    code, answer = post(server, "/api/play", {**body, "goal": goal if body["goal"] == "GOAL" else body["goal"]})
    assert (code, said in answer["error"]) == (400, True), answer


HOST = b"Host: 127.0.0.1\r\n"


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", 403),
        (b"GET /api/goals HTTP/1.1\r\n" + HOST + b"Origin: http://evil.example\r\n\r\n", 403),
        (b"GET /api/goals HTTP/1.1\r\n" + HOST + b"Sec-Fetch-Site: cross-site\r\n\r\n", 403),
        (b"POST /api/act HTTP/1.1\r\nHost: evil\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", 403),
        (b"POST /api/act HTTP/1.1\r\n" + HOST + b"Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", 415),
        (b"POST /api/act HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n\r\n{}", 411),
        (b"POST /api/act HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\nContent-Length: -1\r\n\r\n", 411),
        (b"POST /api/act HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\nContent-Length: 9e9\r\n\r\n", 411),
        (
            b"POST /api/act HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\nContent-Length: 9999999\r\n\r\n",
            413,
        ),
        (
            b"POST /api/act HTTP/1.1\r\n"
            + HOST
            + b"Content-Type: application/json\r\nContent-Length: "
            + b"9" * 5000
            + b"\r\n\r\n",
            413,
        ),
        (b"POST /api/act HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{}", 400),
        (b"GET /api/act HTTP/1.1\r\n" + HOST + b"\r\n", 405),
        (b"POST / HTTP/1.1\r\n" + HOST + b"\r\n", 405),
        (b"DELETE / HTTP/1.1\r\n" + HOST + b"\r\n", 405),
        (b"GET /../../etc/passwd HTTP/1.1\r\n" + HOST + b"\r\n", 404),
        (b"GET /page.html HTTP/1.1\r\n" + HOST + b"\r\n", 404),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/9.9\r\n" + HOST + b"\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"\x00\xff\x16\x03\r\n\r\n", 400),
    ],
)
def test_a_hostile_request_gets_a_4xx_and_never_a_traceback(
    request_: bytes, expected: int, server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    code, body = raw(server, request_)
    assert (code, "Traceback" in body) == (expected, False), body
    assert json.loads(body)["error"]
    with OPENER.open(f"{server.address}/") as page:
        assert b"<!doctype html>" in page.read()
    assert capfd.readouterr() == ("", "")


def test_the_page_loads_nothing_from_elsewhere(server: Server) -> None:
    with OPENER.open(f"{server.address}/") as page:
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        assert re.findall(r"https?://|<link[^>]+href=\"(?!data:)|src=", page.read().decode()) == []


@pytest.mark.slow
def test_the_command_serves_on_loopback_until_ctrl_c(tiny_run: Path) -> None:
    with subprocess.Popen(sacglam("serve", tiny_run, port="0"), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            address = process.stdout.readline().split()[0]
            assert json.load(OPENER.open(f"{address}/api/goals"))["title"].startswith("tiny, 640 steps of ")
            assert listening_beyond_loopback([running()[process.pid]]) == []
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.nightly
@pytest.mark.parametrize("width", [1100, 390])
def test_a_person_plays_in_a_browser(width: int, server: Server, tmp_path: Path) -> None:
    with browser() as page:
        page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        page.open(f"{server.address}/")
        page.wait("goals.length")
        page.evaluate("at('goal').value = goals[0]; at('start').requestSubmit()")
        page.wait("!at('game').hidden && document.querySelectorAll('#actions button').length")
        assert page.evaluate("game.goal === goals[0]")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "it scrolls sideways"
        shares = "[...document.querySelectorAll('.bar:not(.q)')].map(bar => Number(bar.textContent))"
        assert sum(page.evaluate(shares)) == pytest.approx(1, abs=0.02)
        assert page.evaluate("document.querySelectorAll('.bar.q').length") == len(page.evaluate(shares))
        page.screenshot(tmp_path / f"{width}.png")
        # By keyboard: the first action, the agent's, undo, back and forth.
        for key, step in (("1", 1), ("a", 2), ("u", 1), ("ArrowLeft", 0), ("ArrowRight", 1)):
            page.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key if len(key) == 1 else "")
            page.wait(f"shown === {step} && !busy")
        assert page.evaluate("at('place').textContent") == "step 1 of 1"
        page.call("Input.dispatchKeyEvent", type="keyDown", key="v", text="v")
        page.wait("getComputedStyle(document.querySelector('.bars')).visibility === 'hidden'")
        page.call("Input.dispatchKeyEvent", type="keyDown", key="w", text="w")
        page.wait("game.states.at(-1).over", 120)
        assert "episode is over" in page.text() or "Success" in page.text()
        page.evaluate("at('step').value = 0; at('step').oninput({target: at('step')})")
        assert page.evaluate("shown") == 0
        page.evaluate("at('goal').value = 'no such goal'; at('start').requestSubmit()")
        page.wait("at('error').textContent.includes('expected a goal')")
        assert page.complaints == []
        assert {each.split("/")[2] for each in page.requested if each.startswith("http")} == {
            server.address.partition("://")[2]
        }
