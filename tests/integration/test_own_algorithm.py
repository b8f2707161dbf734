"""An algorithm that does not come with sacglam: the example of the docs, from a file outside the package."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from docs.examples.awac import AwacConfig, awac_loss
from sacglam import config as configuration
from sacglam.agent import load_agent
from sacglam.cli import app
from sacglam.errors import ConfigError, UntrustedError
from sacglam.training import resume, train

ROOT = Path(__file__).parents[2]
NAME = "docs.examples.awac:AwacConfig"
TINY = [
    f"algo.type={NAME}",
    "algo.batch_size=8",
    "algo.warmup_updates=2",
    "algo.td_lambda=0.9",
    "env.name=bitflip",
    "env.options={bits: 2}",
    "env.copies=4",
    "steps=96",
    "replay.min_size=8",
    "log_every_steps=32",
    "evaluation.episodes=8",
    "tracking.aim=false",
    "device=cpu",
    "threads=1",
]


def test_the_loss_by_hand() -> None:
    # Two states with two actions each, pi = (1/4, 3/4) and (1/2, 1/2), and two Q functions of which the least counts.
    pi_BA = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    q_CBA = torch.tensor([[[1.0, 0.2], [0.0, 0.0]], [[0.8, 0.4], [0.0, 9.0]]])
    action_B = torch.tensor([0, 1])
    log_pi_BA = pi_BA.log().requires_grad_(True)
    log_prob_B = log_pi_BA.gather(-1, action_B[:, None]).squeeze(-1)
    # V = 0.25 * 0.8 + 0.75 * 0.2 = 0.35 and 0; A = 0.8 - 0.35 = 0.45 and 0 - 0 = 0; the temperature is 0.9.
    loss = awac_loss(log_pi_BA, log_prob_B, q_CBA, action_B, 0.9)
    assert loss.item() == pytest.approx(-(math.exp(0.5) * math.log(0.25) + math.log(0.5)) / 2)
    loss.backward()
    assert log_pi_BA.grad is not None
    assert log_pi_BA.grad.tolist() == [[pytest.approx(-math.exp(0.5) / 2), 0.0], [0.0, -0.5]]


def test_a_weight_has_a_limit() -> None:
    log_pi_BA, q_CBA = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[[1.0, 0.0]]])
    loss = awac_loss(log_pi_BA, log_pi_BA[:, 0], q_CBA, torch.tensor([0]), 0.001)
    assert loss.item() == pytest.approx(20 * math.log(2))


def test_it_trains_stops_resumes_and_plays_by_its_name_alone(tmp_path: Path) -> None:
    config = configuration.load(None, TINY)
    assert isinstance(config.algo, AwacConfig)
    assert config.algo.temperature == 0.1
    whole = train(config, tmp_path / "whole")
    assert (whole["finished"], whole["env_steps"]) == (True, 96)
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert any("actor_loss" in line for line in lines)
    assert all("alpha" not in line for line in lines)
    assert resume(tmp_path / "whole", trusted=True)["success_after"] == whole["success_after"]
    assert load_agent(tmp_path / "whole", trusted=True).has_q
    assert b"Awac-GLAM" in (tmp_path / "whole" / "adapter" / "README.md").read_bytes()


def test_a_run_of_others_that_names_it_is_not_trusted(tmp_path: Path) -> None:
    train(configuration.load(None, TINY), tmp_path / "run")
    with pytest.raises(UntrustedError, match=r"names 'docs.examples.awac:AwacConfig'.*pass --trust"):
        resume(tmp_path / "run")
    for trusted in (False, "environment"):
        with pytest.raises(UntrustedError, match="--trust"):
            load_agent(tmp_path / "run", trusted=trusted)  # type: ignore[arg-type]
    for command in (["export", "DIR/run", "DIR/out"], ["aim-import", "DIR/run"]):
        done = CliRunner().invoke(app, [word.replace("DIR", str(tmp_path)) for word in command])
        assert isinstance(done.exception, UntrustedError), done.output


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("docs.examples.awac:Awac", "expected a subclass of AlgoConfig"),
        ("docs.examples.awac:Gone", "cannot be imported"),
        ("no_such_module:Config", "Is it on the Python path?"),
        ("docs.examples.awac:torch", "reaches into torch, another module"),
        ("awac", "expected one of sac, ppo, or module:Class"),
    ],
)
def test_a_name_that_is_none_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        configuration.load(None, [f"algo.type={name}"])
