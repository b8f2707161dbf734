from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sacglam import config
from sacglam.models.loading import BUILTIN, load_shape
from sacglam.resolve import derived, on_this_machine, threads, with_copies
from sacglam.tools.experiments.results import differences

LONG = ["env.name=bitflip", "env.options={bits: 8, max_steps: 100}"]


@pytest.mark.parametrize(
    ("overrides", "copies"),
    [
        (["steps=19200"], 32),  # 19,200 / (6 x 100) = 32
        (["steps=19199"], 16),
        (["steps=2400"], 4),
        (["steps=10"], 1),
        (["steps=19200", "algo.update_interval=24"], 8),  # the largest that divides it
    ],
)
def test_each_copy_can_play_six_episodes(overrides: list[str], copies: int) -> None:
    # Of 65,536 strings, 100 random flips hardly ever reach the goal: an episode takes its 100 steps.
    asked = config.load(None, [*LONG, "env.options.bits=16", "env.copies=0", *overrides])
    settled = with_copies(asked)
    assert settled.env.copies == copies
    assert derived(asked, settled) == {"env.copies": copies}


def test_a_comparison_finds_its_own_run_again_if_there_are_more_workers_than_copies() -> None:
    asked = config.load(None, [*LONG, "env.options.bits=16", "env.copies=0", "env.workers=4", "steps=1200"])
    settled = with_copies(asked)
    assert (settled.env.copies, settled.env.workers) == (2, 4)
    assert differences(settled, asked) == []


def test_copies_that_are_asked_for_stay() -> None:
    asked = config.load(None, [*LONG, "steps=64", "env.copies=16"])
    assert with_copies(asked) is asked
    assert derived(asked, asked) == {}


def test_a_narrow_model_gets_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sacglam.cpu.cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    wide = tmp_path / "wide"
    shutil.copytree(BUILTIN, wide)
    settings = json.loads((wide / "config.json").read_text()) | {"hidden_size": 288}
    (wide / "config.json").write_text(json.dumps(settings))
    for overrides, expected in (
        ([], 1),
        (["model.name=builtin-t5"], 1),
        ([f"model.name={wide}"], 4),
        (["threads=3"], 3),
        (["learners.count=2"], 0),
    ):
        assert threads(config.load(None, overrides)) == expected


def test_a_folder_of_its_name_does_not_hide_the_built_in_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("builtin", "mine"):
        (tmp_path / name).mkdir()
        asked = config.load(None, [f"model.name={name}", "threads=1"])
        settled = on_this_machine(asked)
        assert settled.model.name == (name if name == "builtin" else str(tmp_path / name))
        assert differences(settled, asked) == []
    assert load_shape(config.load(None).model).model_type == "llama"
