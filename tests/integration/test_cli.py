"""The command line, as a person and a script use it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from sacglam import cli, collector
from sacglam.config import Config
from sacglam.envs import CheckedEnv
from sacglam.types import Step
from tests.conftest import call, sacglam, tiny_train
from tests.integration.test_own_rewards import Corridor


def test_help_and_configuration_load_no_torch() -> None:
    code = (
        "import sys, sacglam, sacglam.config, sacglam.cli; sacglam.load_config();"
        "from typer.testing import CliRunner;"
        "commands = [['train', '--help'], ['profile', '--help'], ['envs', '--json']];"
        "assert all(CliRunner().invoke(sacglam.cli.app, each).exit_code == 0 for each in commands);"
        "sys.exit(sum(name in sys.modules for name in ('torch', 'transformers', 'peft', 'matplotlib')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_envs_counts_the_papers_goals() -> None:
    done = call(sacglam("envs", "--json"))
    found = {entry["name"]: entry for entry in json.loads(done.stdout)}
    full = found["playground"]["goals"]
    assert full == {"grasp": 136, "grow": 46, "grow_then_grasp": 6218, "grow_then_grow": 2070}
    assert sum(full.values()) == 8470
    assert found["playground_simple"]["goals"] == {"grasp": 136, "grow": 46}
    assert found["bitflip"] == {"name": "bitflip", "goals": {"bitflip": 256}, "heldout": {}, "missing": ""}


def test_seed_and_threads_override_the_configuration_of_a_new_run(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Config] = []

    def train(config: Config, *_: object) -> None:
        given.append(config)
        raise SystemExit

    monkeypatch.setattr("sacglam.training.train", train)
    options = ["--seed", "5", "--threads", "3"]
    assert CliRunner().invoke(cli.app, ["train", *options, "--set", "threads=1"]).exit_code == 0
    assert [(config.seed, config.threads) for config in given] == [(5, 3)]
    for name, value in (options[:2], options[2:]):
        refused = CliRunner().invoke(cli.app, ["train", "--resume", "run", name, value])
        assert refused.exit_code == 2
        assert "keeps the run's configuration" in refused.output


def test_where_vllm_does_not_serve_settings_may_exclude_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Config] = []
    monkeypatch.setattr(cli.train, "_dry_run", given.append)
    monkeypatch.setattr(cli.train, "_vllm_serves", lambda config, gpus: config.model.quantize == "none")
    for quantize in ("nf4", "none"):
        words = ["train", "--gpus", "4", "--dry-run", "--set", f"model.quantize={quantize}", "--set", "runtime.lag=1"]
        assert CliRunner().invoke(cli.app, words).exit_code == 0
    words = ["train", "--gpus", "4", "--dry-run", "--set", "engines.tensor_parallel=2"]
    for more in ([], ["--engines", "1"], ["--engines", "0"]):
        assert CliRunner().invoke(cli.app, [*words, *more]).exit_code == 0
    found = [(each.engines.count, each.learners.count, each.runtime.lag) for each in given]
    assert found == [(0, 4, 0), (1, 3, 1), (1, 2, 0), (1, 2, 0), (0, 4, 0)]


def test_what_an_environment_prints_is_not_in_the_json(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_env = collector.build_env

    def talkative(config: Config) -> CheckedEnv:
        print("hello")
        return build_env(config)

    monkeypatch.setattr(collector, "build_env", talkative)
    done = CliRunner().invoke(cli.app, ["evaluate", str(tiny_run), "--json", "--episodes", "2"])
    assert json.loads(done.stdout)["episodes"] == 2
    assert "hello" in done.stderr


def test_pretraining_takes_settings_of_texts_alone(tmp_path: Path) -> None:
    words = ["pretrain", str(tmp_path / "model"), "--env", "bitflip", "--set", "model.name=other"]
    done = CliRunner().invoke(cli.app, words)
    assert (done.exit_code, "settings of env or prompt" in " ".join(done.output.split())) == (2, True)


class Earning(Corridor):
    """Its only reward is its own."""

    def step(self, action: int) -> Step:
        step = super().step(action)
        return replace(step, reward=step.own_reward or 0.0, own_reward=None)


def test_pretraining_takes_an_environment_with_rewards_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sacglam.tools.pretraining.train.pretrain", lambda *_: "read")
    words = ["pretrain", str(tmp_path / "model"), "--env", f"{__name__}:Earning"]
    done = CliRunner().invoke(cli.app, [*words, "--set", "env.reward=environment"])
    assert (done.exit_code, "; read" in " ".join(done.output.split())) == (0, True), done.output


def test_a_run_leaves_what_it_promises(tiny_run: Path) -> None:
    summary = json.loads((tiny_run / "summary.json").read_text())
    assert summary["finished"]
    assert summary["env_steps"] == 640
    for name in ("success_before", "success_after", "success_sampled", "success_random"):
        assert set(summary[name]) == {"overall", "grasp", "grow"}
        assert all(0 <= rate <= 1 for rate in summary[name].values())
    assert summary["updates"] == 18  # one an interval, once the first episodes have ended
    assert summary["seed"] == 0
    # Always there, so that a resumed run does not keep those of its former placement.
    apart = {"engines": 0, "learners": 0, "engine_restarts": 0, "learner_seconds": {}}
    assert apart.items() <= summary.items()
    assert summary["versions"]["torch"].startswith("2.")
    phases = summary["seconds"]
    training = sum(v for k, v in phases.items() if k not in ("evaluation", "samples", "checkpoint"))
    assert training == pytest.approx(summary["train_seconds"], abs=1e-9)
    lines = [json.loads(line) for line in (tiny_run / "metrics.jsonl").read_text().splitlines()]
    assert [line["env_steps"] for line in lines] == list(range(32, 641, 32))
    assert all({"env_steps", "updates", "seconds", "cpu_seconds"} <= line.keys() for line in lines)
    spent = [line["cpu_seconds"] for line in lines]
    assert spent == sorted(spent)
    # One thread: it cannot have more than the clock, but for rounding and what the C library counts meanwhile.
    assert 0 < spent[-1] <= summary["train_cpu_seconds"] <= 1.1 * summary["train_seconds"]
    assert {"success", "entropy", "alpha", "q", "critic_loss", "buffer_hindsight_share"} <= lines[-1].keys()
    assert 0.3 < lines[-1]["batch_hindsight_share"] < 0.8
    assert (tiny_run / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((tiny_run / "checkpoints").iterdir())) == 2


def test_evaluate_prints_json(tiny_run: Path) -> None:
    for goals in ("train", "heldout"):
        done = call(sacglam("evaluate", tiny_run, "--json", goals=goals, episodes="12"))
        found = json.loads(done.stdout)
        assert set(found) == {"success", "mean_return", "return_error", "episodes", "spl"}
        assert found["episodes"] == 12
        assert set(found["success"]) == {"overall", "grasp", "grow"}
        assert 0 <= found["spl"] <= found["success"]["overall"]


def test_play_shows_actions_with_probability_and_q(tiny_run: Path) -> None:
    done = call(sacglam("play", tiny_run, goal="Grow any cat"))
    assert done.returncode == 0, done.stderr
    assert "Goal: Grow any cat" in done.stdout
    for word in ("You see:", "Go to", "probability", "Q", "success"):
        assert word in done.stdout
    marked = [line for line in done.stdout.splitlines() if "> " in line]
    assert len(marked) == done.stdout.count("step ")  # one action of each step
    assert all("Go to" in line or "Grasp" in line for line in marked)


@pytest.mark.slow
def test_play_says_which_goal_a_run_that_chooses_its_goals_pursues_and_why(tmp_path: Path) -> None:
    assert call(tiny_train(tmp_path / "run", "goals=progress")).returncode == 0
    done = call(sacglam("play", tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    said = re.search(r"Goal: (.+)  \((\w+): (\d+)% of recent episodes, progress 0", " ".join(done.stdout.split("\n")))
    assert said, done.stdout
    goal, kind, share = said.groups()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    last = [line for line in map(json.loads, lines) if f"goal_share/{kind}" in line][-1]
    assert goal.lower().startswith(kind)
    assert int(share) == round(100 * last[f"goal_share/{kind}"])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["train", "--set", "algo.gama=0.9"], "did you mean 'algo.gamma'"),
        (["train", "--set", "model.name=/no/such/model"], "cannot be loaded"),
        (["train", "--set", "env.options={num_objects: x}"], "cannot be made with the options"),
        (["train", "--set", "device=cuda:7"], "cannot be used here"),
        (["train", "no_such_file.yaml"], "no_such_file.yaml"),
        (["evaluate", "no_such_run"], "config.yaml"),
        (["train", "--out", "x" * 300], "File name too long"),
        (["train", "--resume", "x" * 300], "File name too long"),
        (["export", "x" * 300, "y"], "File name too long"),
    ],
)
def test_bad_input_gets_a_message_and_no_traceback(command: list[str], said: str, tmp_path: Path) -> None:
    named = "--out" in command or "--resume" in command
    out = ["--out", str(tmp_path / "run")] if command[0] == "train" and not named else []
    done = call(sacglam(*command, *out))
    assert done.returncode == 1
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists(), "a run that never began must not occupy its folder"


def test_too_little_memory_is_reported_with_what_helps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(cli, "app", full)
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    said = " ".join(capsys.readouterr().err.split())
    assert "error: the GPU has too little memory: CUDA out of memory. Tried to allocate 2.00 GiB" in said
    assert "algo.micro_batch_size" in said


def test_a_folder_that_holds_a_run_is_left_alone(tiny_run: Path) -> None:
    before = (tiny_run / "metrics.jsonl").read_bytes()
    done = call(tiny_train(tiny_run))
    assert done.returncode == 1
    assert "already holds a run" in " ".join(done.stderr.split())
    assert "--resume" in done.stderr
    assert (tiny_run / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "env.options.bits=4"], "name it with --check NAME"),
        (["--check", "bitflip", "--set", "bits=4"], "expected settings of env in --set, got bits"),
        (["--check", "bitflip", "--set", "env.options.bit=4"], "bit"),
    ],
)
def test_a_check_refuses_what_it_would_ignore(options: list[str], said: str) -> None:
    done = call(sacglam("envs", *options))
    assert done.returncode != 0
    assert said in " ".join(done.stderr.split())


def test_a_check_is_of_the_environment_that_it_names() -> None:
    done = call(sacglam("envs", "--check", "bitflip", "--set", "env.name=playground", "--episodes", "1"))
    assert "bitflip keeps the contract: 256 goals" in done.stdout


def test_a_check_says_what_hindsight_has_to_work_with() -> None:
    check = sacglam("envs", "--check", "bitflip", "--set", "env.options={bits: 16, max_steps: 2}", "--episodes", "3")
    said = " ".join(call(check).stdout.split())
    assert "0 successes, 6 distinct other goals achieved" in said
    assert "No episode achieved its own goal in 3 random episodes of at most 50 steps" in said
    found = json.loads(call([*check, "--json"]).stdout)
    assert (found["others_achieved"], found["longest"]) == (6, 2)
    assert found["findings"][-1].startswith("No episode achieved its own goal")
    assert "Steps of the longest episode: 2. Episodes that achieved a goal: 3; median step of the first: 1." in said
    assert (
        call([*check, "--steps", "1"]).stdout.count("Episodes still going after step 1, the limit of this check: 3.")
        == 1
    )
