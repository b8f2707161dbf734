"""A run on another machine than the one it was trained on: fewer processes, or no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sacglam import config as configuration
from sacglam.agent import load_agent
from sacglam.build import build_model
from sacglam.config import Config
from sacglam.errors import ConfigError
from sacglam.runs import checkpoint
from sacglam.runs.checkpoint import Checkpoint
from sacglam.runs.directory import RunDirectory
from sacglam.training import resume

NO_SUCH_GPU = "cuda:77"


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def run_of(root: Path, config: Config) -> Path:
    """A run's folder with a checkpoint of fresh weights."""
    directory = RunDirectory.vacant(root)
    with directory.locked():
        directory.claim(config)
    weights = build_model(config.model_copy(update={"device": "cpu"})).state()
    found = Checkpoint(
        {f"model.{name}": t for name, t in weights.items()}, {"progress": {"env_steps": 0, "updates": 0}}
    )
    checkpoint.save(root / "checkpoints", (0, 0), found)
    return root


@pytest.mark.parametrize("ranks", [0, 2])
def test_an_agent_of_many_processes_is_loaded_in_one(ranks: int, tmp_path: Path) -> None:
    placed = ["engines.count=1", f"learners.count={ranks}", "device=cuda" if ranks else "device=cpu"]
    config = configuration.load(None, [*placed, "critic.hidden=[16]"])
    assert config.threads == 0  # left to the placement of each process
    agent = load_agent(run_of(tmp_path / "run", config), "cpu")
    found = agent.probabilities("You see: red cat", "Grasp any cat", ["Grasp", "Go to red cat"])
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-6)


def test_a_device_that_is_not_here_is_named(tmp_path: Path) -> None:
    config = configuration.load(None, [f"device={NO_SUCH_GPU}", "threads=1", "critic.hidden=[16]"])
    root = run_of(tmp_path / "run", config)
    with pytest.raises(ConfigError, match=f"device '{NO_SUCH_GPU}' cannot be used here.*use auto or cpu"):
        resume(root)
    with pytest.raises(ConfigError, match=f"device '{NO_SUCH_GPU}' cannot be used here"):
        load_agent(root, NO_SUCH_GPU)
