"""An algorithm that does not come with sacglam: the example of the docs, from a file outside the package."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from docs.examples.cql import CqlConfig, conservative_loss
from sacglam import config as configuration
from sacglam.agent import load_agent
from sacglam.cli import app
from sacglam.errors import ConfigError, UntrustedError
from sacglam.runs.display import Display
from sacglam.training import resume, train

LN2 = math.log(2)
ROOT = Path(__file__).parents[2]
NAME = "docs.examples.cql:CqlConfig"
TINY = [
    f"algo.type={NAME}",
    "algo.batch_size=8",
    "algo.warmup_updates=2",
    "algo.td_lambda=0.9",
    "env.name=bitflip",
    "env.options={bits: 2}",
    "env.copies=4",
    "steps=96",
    "evaluation.episodes=8",
    "tracking.to=[]",
    "device=cpu",
    "threads=1",
]


def test_the_loss_by_hand() -> None:
    # One state with two actions and padding, and two Q functions: ln(e^0 + e^ln3) - ln3 = ln(4/3), and ln(2) - 0.
    log_pi_BA = torch.tensor([[-LN2, -LN2, -math.inf]])
    q_CBA = torch.tensor([[[0.0, math.log(3), 9.0]], [[0.0, 0.0, 9.0]]], requires_grad=True)
    loss = conservative_loss(q_CBA, log_pi_BA, torch.tensor([1]))
    assert loss.item() == pytest.approx(math.log(4 / 3) + LN2)
    loss.backward()
    assert q_CBA.grad is not None
    assert q_CBA.grad.tolist() == [[[0.25, pytest.approx(-0.25), 0.0]], [[0.5, -0.5, 0.0]]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A finished run and its summary."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    return out, train(configuration.load(None, TINY), out)


def test_it_trains_resumes_and_plays_by_its_name_alone(run: tuple[Path, dict[str, Any]]) -> None:
    config = configuration.load(None, TINY)
    assert isinstance(config.algo, CqlConfig)
    assert config.algo.conservatism == 0.1
    out, whole = run
    assert (whole["finished"], whole["env_steps"]) == (True, 96)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert any("conservative_loss" in line for line in lines)
    assert resume(out, trusted=True)["success_after"] == whole["success_after"]
    assert load_agent(out, trusted=True).has_q
    card = (out / "adapter" / "README.md").read_text()
    assert "Cql-GLAM" in card
    assert 'load_agent("path/to/this/folder", trusted=True)' in card


def test_without_a_checkpoint_it_starts_over_and_says_so(run: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    notes: list[str] = []

    class Noting(Display):
        def note(self, message: str) -> None:
            notes.append(message)

    out, whole = run
    shutil.copytree(out, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert resume(tmp_path / "run", Noting(), trusted=True)["success_after"] == whole["success_after"]
    assert "starting over, since there is no checkpoint yet" in notes


def test_a_run_of_others_that_names_it_is_not_trusted(run: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    out, _ = run
    with pytest.raises(UntrustedError, match=r"names 'docs.examples.cql:CqlConfig'.*pass --trust"):
        resume(out)
    for trusted in (False, "environment"):
        with pytest.raises(UntrustedError, match="--trust"):
            load_agent(out, trusted=trusted)  # type: ignore[arg-type]
    for command in (["export", str(out), str(tmp_path / "out")], ["track", str(out)]):
        done = CliRunner().invoke(app, command)
        assert isinstance(done.exception, UntrustedError), done.output


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("docs.examples.cql:Cql", "expected a subclass of AlgoConfig"),
        ("docs.examples.cql:Gone", "Check the spelling"),
        ("no_such_module:Config", "Is it on the Python path?"),
        ("docs.examples.cql:torch", "reaches into torch, another module"),
        ("cql", "expected one of sac, ppo, awac, or module:Class"),
    ],
)
def test_a_name_that_is_none_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        configuration.load(None, [f"algo.type={name}"])
