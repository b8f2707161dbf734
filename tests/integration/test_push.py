"""`sacglam push` against a stand-in of the Hub."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from sacglam import load_agent
from sacglam.models.loading import BUILTIN
from tests.conftest import sacglam

pytestmark = pytest.mark.slow  # each call starts Python anew, since the hub's address is read on import


class Hub(ThreadingHTTPServer):
    """Keeps what is committed, by repository and file; a token that it does not know gets a 401."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.address = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        self.answer(404, {"error": "not found"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != "Bearer hf_good":
            return self.answer(401, {"error": "Invalid credentials"})
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            self.server.repos.setdefault(name, {})
            self.server.private[name] = asked.get("private") or asked.get("visibility") == "private"
            return self.answer(200, {"url": f"{self.server.address}/{name}"})
        if self.path == "/api/validate-yaml":
            return self.answer(200, {"errors": [], "warnings": []})
        repo, _, action = self.path.removeprefix("/api/models/").partition("/main")[0].rpartition("/")
        if action == "" or repo not in self.server.repos:
            return self.answer(404, {"error": self.path})
        if action == "preupload":
            files = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                for each in json.loads(body)["files"]
            ]
            return self.answer(200, {"files": files})
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                self.server.repos[repo][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        self.answer(
            200, {"commitUrl": f"{self.server.address}/{repo}/commit/1", "commitOid": "1", "pullRequestUrl": None}
        )

    def answer(self, code: int, content: Any) -> None:
        encoded = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield served
        served.shutdown()


def push(hub: Hub, home: Path, *arguments: object, token: str = "hf_good") -> subprocess.CompletedProcess[str]:
    env = {"HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0", "HF_TOKEN": token, "HF_HOME": str(home)}
    command = sacglam("push", *arguments)
    return subprocess.run(command, env=os.environ | env, capture_output=True, text=True, check=False)


def test_an_agent_is_pushed_with_its_results_and_curves(hub: Hub, tiny_run: Path, tmp_path: Path) -> None:
    done = push(hub, tmp_path, tiny_run, "me/cats", "--private")
    assert done.returncode == 0, done.stderr
    assert f"{hub.address}/me/cats" in done.stdout
    assert hub.private == {"me/cats": True}
    pushed = hub.repos["me/cats"]
    names = {"README.md", "adapter_config.json", "adapter_model.safetensors", "agent.yaml", "critic.safetensors"}
    assert names | {"curves.png"} <= {*pushed}
    assert pushed["curves.png"] == (tiny_run / "curves.png").read_bytes()
    assert pushed["adapter_model.safetensors"] == (tiny_run / "adapter" / "adapter_model.safetensors").read_bytes()
    assert json.loads(pushed["adapter_config.json"])["base_model_name_or_path"] == "builtin"
    assert b"name: builtin" in pushed["agent.yaml"]
    card = pushed["README.md"].decode()
    assert "base_model" not in card  # the built-in model is not on the Hub
    assert "| Goals | Random policy | Untrained | Trained |" in card
    assert "(curves.png)" in card


def test_paths_of_this_machine_are_not_published(hub: Hub, tiny_run: Path, tmp_path: Path) -> None:
    model = tmp_path / "my model"
    shutil.copytree(BUILTIN, model)
    agent, exported = load_agent(tiny_run), tmp_path / "agent"
    options = {**agent.config.env.options, "file": "/elsewhere/a game.z8", "files": ["/elsewhere/b.z8"], "at": "/"}
    env = agent.config.env.model_copy(update={"options": options})
    here = agent.config.model_copy(update={"init_from": "/elsewhere/it's here", "env": env})
    here = here.model_copy(update={"prompt": here.prompt.model_copy(update={"template": "/yes/ {goal} {observation}"})})
    here = here.model_copy(update={"model": here.model.model_copy(update={"name": str(model)})})
    replace(agent, config=here).export(exported)
    described = exported / "adapter_config.json"
    described.write_text(json.dumps(json.loads(described.read_text()) | {"base_model_name_or_path": str(model)}))
    done = push(hub, tmp_path, exported, "me/cats")
    assert done.returncode == 0, done.stderr
    pushed = hub.repos["me/cats"]
    texts = {name: pushed[name].decode() for name in ("README.md", "agent.yaml", "adapter_config.json")}
    assert not [name for name, text in texts.items() if str(tmp_path) in text or "/elsewhere" in text]
    assert "name: my model\n" in texts["agent.yaml"]
    settings = yaml.safe_load(texts["agent.yaml"])
    assert settings["init_from"] == "it's here"
    assert (settings["env"]["options"]["file"], settings["env"]["options"]["files"]) == ("a game.z8", ["b.z8"])
    assert settings["env"]["options"]["at"] == "/"
    assert settings["prompt"]["template"] == "/yes/ {goal} {observation}"
    assert "`my model`" in texts["README.md"]


def test_what_a_link_in_the_run_names_is_not_published(hub: Hub, tiny_run: Path, tmp_path: Path) -> None:
    run, secret = tmp_path / "run", tmp_path / "secret"
    shutil.copytree(tiny_run, run)
    secret.write_text("private")
    (run / "curves.png").unlink()
    (run / "curves.png").symlink_to(secret)
    done = push(hub, tmp_path, run, "me/cats")
    assert done.returncode == 0, done.stderr
    assert "curves.png" not in hub.repos["me/cats"]
    assert "(curves.png)" not in hub.repos["me/cats"]["README.md"].decode()


def test_what_cannot_be_pushed_is_explained(hub: Hub, tiny_run: Path, tmp_path: Path) -> None:
    wrong = push(hub, tmp_path, tiny_run, "cats")
    assert (wrong.returncode, "expected the repository as USER/NAME" in wrong.stderr) == (1, True)
    refused = push(hub, tmp_path, tiny_run, "me/cats", token="hf_bad")
    assert refused.returncode == 1
    assert "cannot push to me/cats" in refused.stderr
    assert "HF_TOKEN" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert hub.repos == {}
