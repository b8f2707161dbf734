"""Demonstrations on the command line: collecting them, and runs that begin from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sacglam.envs import make
from sacglam.replay import demonstrations
from tests.conftest import call, sacglam

pytestmark = pytest.mark.slow


def test_an_agents_episodes_are_collected(tiny_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "file.jsonl"
    done = call(sacglam("collect", file, tiny_run, policy="agent", episodes="5", noise="0.5"))
    assert done.returncode == 0, done.stderr
    episodes = list(demonstrations.read(file, make("playground_simple")))
    assert f"5 episodes, {sum(each.success for each in episodes)} of them successful, are in" in done.stdout
    assert len(episodes) == 5


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    file = tmp_path / "file.jsonl"
    neither = call(sacglam("collect", file))
    agentless = call(sacglam("collect", file, env="bitflip", policy="agent"))
    assert [neither.returncode, agentless.returncode] == [2, 2]
    assert "RUN or CONFIG, or --env NAME" in " ".join(neither.stderr.split())
    assert "needs a RUN" in " ".join(agentless.stderr.split())
    assert not file.exists()


def test_where_an_environment_does_not_repeat_all_is_written(tmp_path: Path) -> None:
    file = tmp_path / "file.jsonl"
    done = call(sacglam("collect", file, "--set", "env.repeats=false", env="bitflip", policy="random", episodes="2"))
    assert done.returncode == 0, done.stderr
    assert [json.loads(line).keys() >= {"steps", "last"} for line in file.read_text().splitlines()] == [True, True]
