"""Dry runs with the real parts, made short: what they show, what they leave behind, and what is missing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import random_model
from sacglam import config as configuration
from sacglam.build import build_model
from sacglam.cli import app
from sacglam.clock import PhaseClock
from sacglam.errors import SacglamError
from sacglam.runs.display import Display
from sacglam.tools.dry_run.calibrate import calibrate, first_steps, grow, play

SHORT = ["threads=1", "env.copies=8", "algo.batch_size=16", "critic.hidden=[16]", "env.options.max_steps=5"]
PPO = "algo={type: ppo, update_interval: 64, batch_size: 16}"


@pytest.fixture(autouse=True)
def _no_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sacglam.tools.dry_run.calibrate._STEADY_S", 0.0)
    monkeypatch.setenv("COLUMNS", "200")


def dry_run(folder: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> tuple[int, str]:
    """Exit code and output of a dry run in `folder`, which it leaves empty."""
    monkeypatch.chdir(folder)
    threads = torch.get_num_threads()
    words = [word for override in (*SHORT, *overrides) for word in ("--set", override)]
    try:
        done = CliRunner().invoke(app, ["train", "--dry-run", *words])
    finally:
        torch.set_num_threads(threads)
    assert not list(folder.iterdir())
    assert done.exception is None or isinstance(done.exception, SystemExit | SacglamError), done.exception
    return done.exit_code, done.output


@pytest.mark.slow
@pytest.mark.parametrize("model", ["builtin", "builtin-t5"])
@pytest.mark.parametrize("algo", ["algo.micro_batch_size=8", PPO], ids=["sac", "ppo"])
def test_everything_is_shown(model: str, algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = dry_run(tmp_path, monkeypatch, f"model.name={model}", algo, "device=cpu")
    assert code == 0, said
    for part in ("one process on cpu", "parameters: LoRA", "base weights", "Adam's moments", "replay"):
        assert part in said
    assert "not known here" not in said
    for phase in ("environment", "scoring", "batch making", "target", "forward", "backward", "optimizer", "all"):
        assert phase in said.partition("Time for the whole run")[2], phase
    assert "8 of 8 states scored" in said
    assert "16 of 16 rows" in said
    assert "nothing was written" in said


def test_a_missing_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = dry_run(tmp_path, monkeypatch, "device=cuda:7")
    assert code == 1
    assert "missing here: device 'cuda:7' cannot be used here" in said
    assert "No time is predicted" in said
    for part in ("parameters: base", "Adam's moments", "not known here"):
        assert part in said


def test_a_missing_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = dry_run(tmp_path, monkeypatch, "model.name=/no/such/model", "device=cpu", "engines.count=1")
    assert code == 1
    assert "missing here: model '/no/such/model' cannot be loaded: [Errno 2] No such file" in said
    assert "182 goals" in said
    assert "1 scoring engine with" in said


@pytest.mark.parametrize("algo", ["algo.td_lambda=null", "algo.td_lambda=0.9", PPO])
def test_random_play(algo: str) -> None:
    config = configuration.load(None, [*SHORT, algo])
    played = play(config)
    assert 1 <= played.episode_steps <= 5
    assert len(played.states) >= 8
    assert played.environment_s > 0
    count = len if algo == "algo.td_lambda=null" else lambda windows: sum(map(len, windows))
    rows = 64 if algo == PPO else 16
    assert rows <= count(played.batch) < rows + 10 * (algo == "algo.td_lambda=0.9") + 1  # whole windows
    for wanted in (1, 7, rows):
        assert count(first_steps(config, played.batch, wanted)) == wanted


@pytest.mark.parametrize(("copies", "sizes"), [(2, (2, 32)), (64, (64, 64))])
def test_scoring_is_measured_for_the_copies_and_for_evaluations(copies: int, sizes: tuple[int, int]) -> None:
    settings = [*SHORT, f"env.copies={copies}", "algo.update_interval=64", "device=cpu", "algo.batch_size=2"]
    config = configuration.load(None, settings)
    found = calibrate(config, build_model(config), play(config), Display())
    assert (found.scoring.size, found.evaluation.size) == sizes


def test_work_grows_while_the_next_size_is_expected_to_fit_in_time() -> None:
    """At 20 ms a row, 1 + 2 + 4 + 8 rows take 0.3 s, and 16 more would pass 0.5; a busy machine stops sooner."""
    clock, sizes = PhaseClock(), []

    def run(size: int) -> None:
        sizes.append(size)
        with clock.phase("work"):
            time.sleep(0.02 * size)

    start = time.perf_counter()
    found = grow(run, 1000, 0.5, clock, "cpu", Display())
    assert time.perf_counter() - start < 10
    assert sizes == [2**i for i in range(len(sizes))]
    assert found.size == sizes[-1] <= 8
    assert found.seconds["work"] >= 0.02 * found.size


def test_the_whole_work_is_repeated_for_a_mean() -> None:
    clock, sizes = PhaseClock(), []

    def run(size: int) -> None:
        sizes.append(size)
        with clock.phase("work"):
            time.sleep(0.01 * size)

    found = grow(run, 6, 1000.0, clock, "cpu", Display())
    assert found.size == 6
    assert sizes[:4] == [1, 2, 4, 6]
    repeats = len(sizes) - 4
    assert repeats >= 1
    assert 0.06 <= found.seconds["work"] <= clock.seconds["work"] / repeats


def test_an_update_of_ppo_has_no_more_rows_than_its_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = "algo={type: ppo, update_interval: 16, batch_size: 64}"
    code, said = dry_run(tmp_path, monkeypatch, small, "device=cpu")
    assert code == 0, said
    assert "16 of 16 rows" in said
    assert "updates of 16 rows (16 in one pass)" in " ".join(said.split())


def test_a_random_model_of_known_shape_can_be_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random_model.write("t5-tiny", tmp_path / "model")
    (tmp_path / "here").mkdir()
    code, said = dry_run(tmp_path / "here", monkeypatch, f"model.name={tmp_path / 'model'}", "device=cpu")
    assert code == 0, said


def test_a_run_with_a_judge_can_be_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = dry_run(tmp_path, monkeypatch, "partner=judge", "device=cpu")
    assert code == 0, said
