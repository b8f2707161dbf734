"""That it learns: thresholds well below what it reaches, well above chance. Minutes, not seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sacglam import config
from sacglam.training import train

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def run(out: Path, name: str | None, *overrides: str) -> dict[str, Any]:
    file = None if name is None else ROOT / "configs" / name
    return train(config.load(file, [*overrides, "checkpoint.every_steps=100000"]), out)


def test_the_quickstart_learns_the_simple_game(tmp_path: Path) -> None:
    summary = run(tmp_path / "run", None, "threads=1", "evaluation.episodes=200")
    assert summary["success_before"]["overall"] <= 0.4
    assert 0.25 < summary["success_random"]["overall"] < 0.45
    assert summary["success_after"]["overall"] >= 0.85
    assert summary["spl_after"] >= 0.8
    assert summary["warnings"] == []


@pytest.mark.nightly
def test_ppo_learns_the_simple_game(tmp_path: Path) -> None:
    summary = run(tmp_path / "run", "simple/ppo.yaml", "threads=1", "evaluation.episodes=200")
    assert summary["success_after"]["overall"] >= 0.85


@pytest.mark.nightly
def test_an_encoder_decoder_learns_the_simple_game(tmp_path: Path) -> None:
    summary = run(tmp_path / "run", "quickstart_t5.yaml", "threads=1", "evaluation.episodes=200")
    assert summary["success_after"]["overall"] >= 0.8


@pytest.mark.nightly
def test_the_full_game_is_learnt(tmp_path: Path) -> None:
    summary = run(tmp_path / "run", "full/sac_her.yaml", "threads=1", "evaluation.episodes=200")
    assert summary["success_after"]["overall"] >= 0.8
    assert summary["success_heldout"]["overall"] > summary["success_random"]["overall"]
