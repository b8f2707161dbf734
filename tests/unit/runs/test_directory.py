"""A run's folder: damaged files, locks, and code that it names."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacglam import files
from sacglam.config import load
from sacglam.errors import ConfigError, RunDirectoryError, SacglamError
from sacglam.runs.curves import draw_curves
from sacglam.runs.directory import RunDirectory, fresh
from sacglam.runs.exported import write_exported
from sacglam.runs.logs import LineLog
from sacglam.tools.tracking import sidecar
from tests.fuzz.common import within

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
    assert log.rewind(96, 0) == 1
    assert log.lines() == LINES[:3]


def test_a_last_line_that_was_cut_short_is_no_damage(tmp_path: Path) -> None:
    log = log_of(written(LINES) + b'{"env_st', tmp_path)
    assert log.lines() == LINES
    assert log.rewind(10_000, 0) == 0
    assert (tmp_path / "metrics.jsonl").read_bytes() == written(LINES)


def test_a_folder_is_claimed_once(tmp_path: Path) -> None:
    config = load()
    with pytest.raises(RunDirectoryError, match="found none"):
        RunDirectory.open(tmp_path)
    RunDirectory.vacant(tmp_path).claim(config)
    assert RunDirectory.open(tmp_path).config() == config
    with pytest.raises(RunDirectoryError, match="already holds a run"):
        RunDirectory(tmp_path).claim(config)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_can_be_read(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder))
        for file in (run.metrics_file, run.summary_file, run.root / "aim.json"):
            file.write_bytes(content)
        run.metrics()
        assert run.summary() is None or isinstance(run.summary(), dict)
        sidecar.ids(run, "aim")


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


def test_a_file_system_without_locks_is_used_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(file: Any, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with RunDirectory(tmp_path).locked(), RunDirectory(tmp_path).locked():
        assert (tmp_path / ".lock").exists()


LAKE = "gymnasium:FrozenLake-v1"
CODE = {
    "a module": ("os:system", {}),
    "of ours": ("sacglam.runs.checkpoint:os.system", {"command": "true"}),
    "one that does not exist": ("no_such_module:Env", {}),
    "below the working directory": ("my_world:World", {}),
    "an id of ours": ("gymnasium:Bitflip-v0", {"kwargs": {"name": "os:system", "command": "true"}}),
    "an id with a module": ("gymnasium:my_world:World-v0", {}),
    "an id of no describer": ("gymnasium:CartPole-v1", {"text": "obs"}),
    "a describer": (LAKE, {"describer": "my_world:Words"}),
}


@pytest.mark.parametrize(("name", "options"), CODE.values(), ids=CODE)
def test_a_run_may_not_name_code(
    name: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_world.py").write_text("raise SystemExit('this must not be imported to find out')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(
        load(None, [f"env={json.dumps({'name': name, 'options': options})}"]).to_yaml()
    )
    with pytest.raises(ConfigError, match=f"names '{options.get('describer', name)}'.*pass --trust"):
        RunDirectory.open(tmp_path).config()
    assert RunDirectory.open(tmp_path, trusted=True).config().env.name == name


@pytest.mark.parametrize(("name", "options"), [("bitflip", {"bits": 3}), (LAKE, {"kwargs": {"is_slippery": False}})])
def test_a_run_may_name_what_comes_with_sacglam(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        load(None, [f"env={json.dumps({'name': name, 'options': options})}"]).to_yaml()
    )
    assert RunDirectory.open(tmp_path).config().env.name == name


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


def test_a_line_with_what_is_no_number_is_damaged(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    lines = [{"env_steps": 32, "seconds": 1.0, "q": q} for q in (0.5, "0.5", None, True, [1], float("nan"), 10**400)]
    run.metrics_file.write_bytes(written(lines))
    assert run.metrics() == lines[:1]
    run.metrics_file.unlink()
    assert run.metrics() == []


@pytest.mark.parametrize("planted", [Path.mkdir, os.mkfifo, lambda file: file.symlink_to("/dev/zero")])
def test_a_log_that_is_no_file_is_refused_at_once(planted: Callable[[Path], None], tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    planted(run.metrics_file)
    with within(5), pytest.raises(RunDirectoryError, match=r"cannot read .*metrics.jsonl: expected a regular file"):
        run.metrics()


@pytest.mark.parametrize("planted", [os.mkfifo, lambda file: file.symlink_to("/dev/zero")])
@pytest.mark.parametrize("name", [".lock", "summary.json", "aim.json", "config.yaml"])
def test_a_pipe_or_an_endless_file_hangs_no_reader(
    name: str, planted: Callable[[Path], None], tmp_path: Path, tiny_run: Path
) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    (tmp_path / "run" / name).unlink(missing_ok=True)
    planted(tmp_path / "run" / name)
    run = RunDirectory(tmp_path / "run")
    with within(10), suppress(SacglamError):
        run.summary()
        sidecar.ids(run, "aim")
        with run.locked():
            run.config()


WRITTEN = {
    "metrics.jsonl": lambda run: LineLog(run.metrics_file).rewind(32, 0),
    "summary.json": lambda run: run.write_summary({}),
    "aim.json": lambda run: sidecar.write_id(run, "aim", "hash"),
    "curves.png": draw_curves,
    "adapter/README.md": lambda run: write_exported(run.adapter, {"x.safetensors": b""}, load(), 0, {}),
}


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("planted", ["{}", "{}.writing", "{stem}.writing"])
def test_no_write_follows_a_planted_link(name: str, planted: str, tmp_path: Path) -> None:
    run, theirs = RunDirectory(tmp_path / "run"), tmp_path / "theirs"
    theirs.write_text("precious")
    link = run.root / planted.format(name, stem=name.partition(".")[0])
    link.parent.mkdir(parents=True)
    link.symlink_to(theirs)
    WRITTEN[name](run)
    assert theirs.read_text() == "precious"
    assert (run.root / name).is_file()
    assert not (run.root / name).is_symlink()


def test_an_export_that_is_interrupted_leaves_no_summary_of_another_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(mark: bytes) -> None:
        write_exported(
            tmp_path / "best", {"x.safetensors": mark, "y.safetensors": mark}, load(), 0, {"mark": f"{mark!r}"}
        )

    def interrupted(path: Path, content: bytes) -> None:
        if path.name == "y.safetensors":
            raise KeyboardInterrupt
        written(path, content)

    export(b"old")
    written = files.write
    monkeypatch.setattr(files, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(b"new")
    assert (tmp_path / "best" / "x.safetensors").read_bytes() == b"new"
    assert RunDirectory(tmp_path / "best").summary() is None


def test_a_claim_follows_no_planted_link(tmp_path: Path) -> None:
    run, theirs = RunDirectory(tmp_path / "run"), tmp_path / "theirs"
    theirs.write_text("precious")
    run.root.mkdir()
    (run.root / "config.yaml.writing").symlink_to(theirs)
    run.claim(load())
    assert theirs.read_text() == "precious"
    assert run.config_file.is_file()
    assert not run.config_file.is_symlink()


REFUSED = {
    "metrics.jsonl": lambda run: LineLog(run.metrics_file).append({"env_steps": 1}),
    ".lock": lambda run: run.locked().__enter__(),
    "adapter": lambda run: write_exported(run.adapter, {"x.safetensors": b""}, load(), 0, {}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_written_through_a_link_is_refused(name: str, tmp_path: Path) -> None:
    run, theirs = RunDirectory(tmp_path / "run"), tmp_path / "theirs"
    for folder in (run.root, theirs):
        folder.mkdir()
    (run.root / name).symlink_to(theirs if name == "adapter" else theirs / "file")
    with pytest.raises(RunDirectoryError, match="it is a link"):
        REFUSED[name](run)
    assert not any(theirs.iterdir())


@pytest.mark.parametrize(
    "left", ["metrics.jsonl", "samples.jsonl", "summary.json", "checkpoints/step-1/x", "adapter/x", "notes"]
)
def test_a_new_run_wants_an_empty_place(left: str, tmp_path: Path) -> None:
    """`rm config.yaml; sacglam train --out` went on with the old weights under another configuration."""
    (tmp_path / left).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / left).touch()
    first = left.partition("/")[0]
    with pytest.raises(RunDirectoryError, match=f"new or empty folder, but it holds {first}; choose another one"):
        RunDirectory.vacant(tmp_path)
    run = RunDirectory(tmp_path)
    with run.locked(), pytest.raises(RunDirectoryError, match=first):
        run.claim(load())
    assert not run.claimed


def test_runs_that_begin_at_once_have_folders_of_their_own(tmp_path: Path) -> None:
    first, second = fresh(3, tmp_path), fresh(3, tmp_path)
    assert first != second
    assert RunDirectory.vacant(second).root.is_dir()


def test_a_link_to_nowhere_in_place_of_the_parent_is_reported(tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to(tmp_path / "unmounted" / "scratch")
    with within(10), pytest.raises(RunDirectoryError, match="cannot write"):
        fresh(3, tmp_path / "runs")


def test_a_new_run_may_have_an_empty_folder_or_what_a_killed_claim_left(tmp_path: Path) -> None:
    RunDirectory.vacant(tmp_path)
    for name in (".lock", "config.yaml.writing"):
        (tmp_path / name).touch()
    with RunDirectory.vacant(tmp_path).locked():
        RunDirectory(tmp_path).claim(load())
    assert RunDirectory.open(tmp_path).config() == load()
