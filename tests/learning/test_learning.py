"""That it learns: thresholds well below what it reaches, well above chance. Minutes, not seconds."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from benchmarks.battery.models import command
from sacglam import config
from sacglam.training import train
from sacglam.worlds.gymnasium.toy_text import FrozenLake

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def run(out: Path, name: str | None, *overrides: str) -> dict[str, Any]:
    file = None if name is None else ROOT / "configs" / name
    return train(config.load(file, overrides), out)


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


class Silent(FrozenLake):
    """A lake that says nothing but success."""

    @override
    def achieved(self, obs: Any, info: Mapping[str, Any]) -> None:
        return None


@pytest.mark.nightly
def test_a_lake_that_lists_what_was_achieved_for_1000_steps_is_learnt_with_a_judge_and_not_without(
    tmp_path: Path,
) -> None:
    name, model = "autotelic/frozen_lake.yaml", tmp_path / "model"
    subprocess.run(command(config.load(ROOT / "configs" / name), model), check=True)
    settings = [f"model.name={model}", "threads=1", "seed=4", "evaluation.episodes=20", "algo.exploration=0"]
    run(tmp_path / "judge", name, *settings)
    lines = [json.loads(line) for line in (tmp_path / "judge" / "metrics.jsonl").read_text().splitlines()]
    late = [line["success/practice"] for line in lines if line["env_steps"] > 4800 and "success/practice" in line]
    assert (
        sum(late) / len(late) > 0.6
    )  # by the environment's verdict: cells of ice, reached with a fifth of random steps
    assert min(line.get("partner_precision", 1) for line in lines) > 0.85
    silent = ["partner=environment", "env.options.practice=false", f"env.options.describer={__name__}:Silent"]
    assert run(tmp_path / "silent", name, *settings, *silent)["success_after"]["overall"] == 0
