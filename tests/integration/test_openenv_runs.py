"""`sacglam serve-env`, and a run on its server: the same as in one process."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openenv", reason="needs the extra openenv-server")

from tests.conftest import call, sacglam, tiny_train
from tests.integration.processes import listening_beyond_loopback, running

STAGES = ("random", "before", "after", "sampled", "heldout")
EVALUATED = {*(f"success_{stage}" for stage in STAGES), *(f"spl_{stage}" for stage in STAGES[:3])}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and the address."""
    command = sacglam("serve-env", "playground_simple", "--port", "0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        line = process.stdout.readline()
        found = re.fullmatch(r"env\.name: (openenv:http://127\.0\.0\.1:\d+) \(Ctrl-C stops it\)\n", line)
        assert found, line
        yield process, found[1]
        process.kill()


def lines(run: Path, name: str) -> list[dict[str, Any]]:
    """What does not depend on the clock."""
    read = [json.loads(line) for line in (run / name).read_text().splitlines()]
    return [{key: value for key, value in line.items() if "second" not in key} for line in read]


def test_a_run_on_a_server_is_the_run_in_one_process(
    server: tuple[subprocess.Popen[str], str], tiny_run: Path, tmp_path: Path
) -> None:
    process, name = server
    assert not listening_beyond_loopback([running()[process.pid]])
    there = tmp_path / "there"
    done = call(tiny_train(there, f"env.name={name}"))
    assert done.returncode == 0, done.stderr
    for file in ("metrics.jsonl", "samples.jsonl"):
        assert lines(there, file) == lines(tiny_run, file)
    same = [
        {key: value for key, value in json.loads((run / "summary.json").read_text()).items() if key in EVALUATED}
        for run in (there, tiny_run)
    ]
    assert same[0] == same[1]
    assert same[0].keys() == EVALUATED
    refused = call(sacglam("evaluate", there, episodes="4"))
    assert refused.returncode == 1
    assert name in refused.stderr
    evaluated = call(sacglam("evaluate", there, "--trust", episodes="4"))
    assert evaluated.returncode == 0, evaluated.stderr


def test_the_check_of_a_server(server: tuple[subprocess.Popen[str], str]) -> None:
    done = call(sacglam("envs", "--check", server[1], episodes="10"))
    assert done.returncode == 0, done.stderr
    assert "keeps the contract: 182 goals, 10 random episodes" in done.stdout


def test_a_server_stops_at_once_although_sessions_are_open(server: tuple[subprocess.Popen[str], str]) -> None:
    from sacglam.envs import make

    env = make(server[1])
    env.reset(env.goals("train")[0], 0)
    server[0].send_signal(signal.SIGINT)
    assert server[0].wait(30) == 0


def test_an_environment_that_cannot_be_served() -> None:
    done = call(sacglam("serve-env", "playgrond"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "did you mean 'playground'" in done.stderr
