"""Demonstrations on the command line: collecting them, and runs that begin from them."""

from __future__ import annotations

import json
import shutil
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from sacglam import config as configuration
from sacglam.clock import PhaseClock
from sacglam.collector import collector
from sacglam.envs import make
from sacglam.replay import demonstrations
from sacglam.scoring.base import UniformScorer
from tests.conftest import call, sacglam, tiny_ppo, tiny_train
from tests.integration.test_distributed import assert_close, train
from tests.integration.test_resume import assert_same_end, interrupt, metrics

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


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Demonstrations of the tiny run's game."""
    made = tmp_path_factory.mktemp("demonstrations") / "file.jsonl"
    assert call(sacglam("collect", made, env="playground_simple", episodes="20")).returncode == 0
    return made


def imitating(file: Path) -> list[str]:
    return [
        f"replay.demonstrations={file}",
        "replay.demonstration_updates=170",
        "steps=320",
        "evaluation.every_steps=160",
        "evaluation.every_episodes=8",
    ]


def test_a_run_is_killed_in_its_initial_updates_and_after_them_and_resumes(file: Path, tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "killed"
    assert call(tiny_train(whole, *imitating(file))).returncode == 0
    lines = metrics(whole)
    initial = [line["updates"] for line in lines if not line["env_steps"] and "cloning_loss" in line]
    assert initial == [*range(20, 161, 20), 170]
    assert [line["updates"] for line in lines if "eval_success/overall" in line and not line["env_steps"]] == [170]
    assert all("critic_loss" in line for line in lines if "cloning_loss" in line)
    # Before and after the first checkpoint (at 100 updates), and later in training.
    assert interrupt(tiny_train(run, *imitating(file)), run, 2, signal.SIGKILL) == -signal.SIGKILL
    assert interrupt(sacglam("train", resume=str(run)), run, 6, signal.SIGKILL) == -signal.SIGKILL
    assert interrupt(sacglam("train", resume=str(run)), run, 10, signal.SIGTERM) == 0
    assert interrupt(sacglam("train", resume=str(run)), run, 15, signal.SIGKILL) == -signal.SIGKILL
    assert call(sacglam("train", resume=str(run))).returncode == 0
    assert_same_end(run, whole, lines=len(lines))


def test_another_file_is_refused_where_a_run_resumes(file: Path, tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other.jsonl"
    shutil.copy(file, other)
    assert interrupt(tiny_train(run, *imitating(other)), run, 10, signal.SIGTERM) == 0
    other.write_bytes(b"".join(other.read_bytes().splitlines(keepends=True)[:-1]))
    done = call(sacglam("train", resume=str(run)))
    assert done.returncode == 1
    assert "other.jsonl has changed since the run began" in " ".join(done.stderr.split())


def test_without_replay_no_relabelled_copies_take_the_place_of_demonstrations(file: Path) -> None:
    kept = {}
    for algo in ("sac", "ppo"):
        imitated = [f"replay.demonstrations={file}", "replay.demonstration_updates=1"]
        config = configuration.load(None, [f"algo={algo}", "env.copies=2", "replay.hindsight=uniform", *imitated])
        found = collector(config, UniformScorer(), PhaseClock()).demonstrations
        assert found
        kept[algo] = len(found.ring), len(found.steps)
    assert kept["ppo"][0] == kept["ppo"][1] == kept["sac"][1] < kept["sac"][0]


def test_ppo_begins_from_demonstrations(file: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    overrides = [*imitating(file), "replay.demonstration_updates=40", "steps=64"]
    done = call(tiny_ppo(run, *overrides))
    assert done.returncode == 0, done.stderr
    lines = metrics(run)
    assert [line["updates"] for line in lines[:2]] == [20, 40]
    assert lines[1]["cloning_loss"] < lines[0]["cloning_loss"]
    assert "value_loss" in lines[-2]


def test_an_agent_learns_from_the_file_alone(file: Path, tmp_path: Path) -> None:
    """AWAC without a step in the environment: its own updates, to the same end after a kill."""
    whole, run = tmp_path / "whole", tmp_path / "killed"
    offline = [*imitating(file), "algo.type=awac", "steps=0"]
    assert call(tiny_train(whole, *offline), curves=True).returncode == 0
    assert (whole / "curves.png").stat().st_size > 1000
    lines = metrics(whole)
    assert {line["env_steps"] for line in lines} == {0}
    assert lines[0]["critic_loss"] > 0
    assert "actor_loss" in lines[1]  # after the warm-up
    assert not any("cloning_loss" in line for line in lines)
    assert json.loads((whole / "summary.json").read_text())["finished"]
    assert interrupt(tiny_train(run, *offline), run, 6, signal.SIGKILL) == -signal.SIGKILL
    assert call(sacglam("train", resume=str(run))).returncode == 0
    assert_same_end(run, whole, lines=len(lines))


@pytest.mark.nightly
@pytest.mark.skipif(not (find_spec("ray") and find_spec("deepspeed")), reason="Ray or DeepSpeed is not installed")
def test_two_ranks_and_an_engine_imitate_as_one_process_does(file: Path, tmp_path: Path) -> None:
    overrides = [*imitating(file), "replay.demonstration_updates=40", "steps=160", "threads=1"]
    for out, options in {"one": {}, "more": {"engines": "1", "learners": "2"}}.items():
        done = call(train(tmp_path / out, *overrides, **options))
        assert done.returncode == 0, done.stderr
    assert_close(tmp_path / "more", tmp_path / "one")
    assert sum("cloning_loss" in line for line in metrics(tmp_path / "more")) == 2
