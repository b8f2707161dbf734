"""A run's folder: damaged files, locks, and code that it names."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacglam.config import load
from sacglam.errors import ConfigError, RunDirectoryError
from sacglam.runs.directory import LineLog, RunDirectory

LINES = [{"env_steps": 32 * i, "success": 0.5} for i in range(1, 5)]


def log_of(content: bytes, folder: Path) -> LineLog:
    file = folder / "metrics.jsonl"
    file.write_bytes(content)
    return LineLog(file)


def written(lines: list[dict[str, float]]) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


@pytest.mark.parametrize(
    "damage", [b"\xff", b"{", b"[]", b"null", b'{"success": 1}', b'{"env_steps": "32"}', b"[" * 9999]
)
def test_a_damaged_line_costs_no_other(damage: bytes, tmp_path: Path) -> None:
    log = log_of(written(LINES[:2]) + damage + b"\n" + written(LINES[2:]), tmp_path)
    assert log.lines() == LINES
    assert log.rewind(96) == 1
    assert log.lines() == LINES[:3]


def test_a_last_line_that_was_cut_short_is_no_damage(tmp_path: Path) -> None:
    log = log_of(written(LINES) + b'{"env_st', tmp_path)
    assert log.lines() == LINES
    assert log.rewind(10_000) == 0
    assert (tmp_path / "metrics.jsonl").read_bytes() == written(LINES)


def test_a_folder_that_was_being_claimed_when_its_process_was_killed_holds_no_run(tmp_path: Path) -> None:
    config = load()
    (tmp_path / "config.yaml").touch()
    with pytest.raises(RunDirectoryError, match="found none"):
        RunDirectory.open(tmp_path)
    RunDirectory.vacant(tmp_path).claim(config)
    assert RunDirectory.open(tmp_path).config() == config
    with pytest.raises(RunDirectoryError, match="holds a run already"):
        RunDirectory(tmp_path).claim(config)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_can_be_read(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder))
        for file in (run.metrics_file, run.summary_file, run.aim_file):
            file.write_bytes(content)
        run.metrics()
        assert run.summary() is None or isinstance(run.summary(), dict)
        run.aim()


@pytest.mark.parametrize("content", ["[]", "null", "3", '"x"', "{", ""])
def test_a_summary_that_is_no_object_is_no_summary(content: str, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(content)
    assert RunDirectory(tmp_path).summary() is None


def test_a_folder_has_one_process_at_a_time_and_is_free_when_it_ends(tmp_path: Path) -> None:
    program = "import sys, time; from pathlib import Path; from sacglam.runs.directory import RunDirectory\n"
    program += "with RunDirectory(Path(sys.argv[1])).locked(): print('locked', flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout
    try:
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(RunDirectoryError, match="another process"), RunDirectory(tmp_path).locked():
            pass
    finally:
        holder.kill()
        holder.communicate()
    with RunDirectory(tmp_path).locked():
        pass


@pytest.mark.parametrize("name", ["os:system", "subprocess:run", "numpy:zeros", "no_such_module:Env"])
def test_a_run_may_not_name_code_from_elsewhere(name: str, tmp_path: Path) -> None:
    RunDirectory(tmp_path).claim(load(None, [f"env.name={name}"]))
    with pytest.raises(ConfigError, match="--trust"):
        RunDirectory.open(tmp_path).config()
    assert RunDirectory.open(tmp_path, trusted=True).config().env.name == name


def test_a_run_may_name_code_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_world.py").write_text("raise SystemExit('this must not be imported to find out')\n")
    run = RunDirectory(tmp_path / "run")
    with run.locked():
        run.claim(load(None, ["env.name=my_world:World"]))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert RunDirectory.open(tmp_path / "run").config().env.name == "my_world:World"
    monkeypatch.chdir("/")
    monkeypatch.chdir(Path(__file__).parent)
    with pytest.raises(ConfigError, match="--trust"):
        RunDirectory.open(tmp_path / "run").config()


def test_a_configuration_that_was_changed_after_the_start_is_reported(tmp_path: Path, tiny_run: Path) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run.config().algo.gamma == 0.8
    run.config_file.write_text(run.config_file.read_text().replace("gamma: 0.8", "gamma: 0.95"))
    with pytest.warns(UserWarning, match="was changed after the run began"):
        assert run.config().algo.gamma == 0.95


@pytest.mark.parametrize(
    "change",
    [
        {"success_before": 3},
        {"success_before": {}},
        {"success_after": None},
        {"train_seconds": "1"},
        {"train_seconds": 0},
        {"success_after": {"grasp": 1.0}},
        {"versions": None},
        {"env_steps": float("nan")},
        {"finished": "yes"},
    ],
)
def test_a_summary_that_its_readers_could_not_use_is_none(
    change: dict[str, Any], tiny_run: Path, tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path)
    found = RunDirectory(tiny_run).summary()
    assert found is not None
    run.write_summary({**found, **change})
    assert run.summary() is None


def test_what_is_no_number_is_no_metric(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    lines = [{"env_steps": 32, "seconds": 1.0, "q": q} for q in (0.5, "0.5", None, True, [1], float("nan"), 10**400)]
    run.metrics_file.write_bytes(written(lines))
    assert [line.get("q") for line in run.metrics()] == [0.5, None, None, None, None, None, None]
    run.metrics_file.unlink()
    run.metrics_file.mkdir()
    assert run.metrics() == []
