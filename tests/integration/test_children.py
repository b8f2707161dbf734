"""Files of the working directory that are called as modules are: no process that a command starts runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TINY
from tests.unit.envs.test_envs_registry import code_blocks

SETTINGS = [*(each for each in TINY if not each.startswith(("threads", "steps"))), "steps=64", "env.workers=1"]
OVERRIDES = [word for setting in SETTINGS for word in ("--set", setting)]
# As the console script `sacglam`: the command itself does not search the working directory.
SACGLAM = [sys.executable, "-P", "-m", "sacglam"]
ELSEWHERE = ("aim", "alembic", "pydantic", "sitecustomize", "sqlalchemy", "torch", "typing_extensions", "usercustomize")
PLANTED = """
import posix, sys
mark = posix.open({mark!r}, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND)
posix.write(mark, f"{{__name__}} in {{sys.orig_argv[1:4]}}; ".encode())
posix._exit(3)
"""


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder in which every module of Python's, and some of others, has a stand-in."""
    folder = tmp_path / "planted"
    folder.mkdir()
    names = {name for name in sys.stdlib_module_names if name not in sys.builtin_module_names}
    for name in {*names, *ELSEWHERE}:
        (folder / f"{name}.py").write_text(PLANTED.format(mark=str(tmp_path / "mark")))
    return folder


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=300, check=False
    )


def assert_nothing_ran(done: subprocess.CompletedProcess[str], planted: Path) -> None:
    mark = planted.parent / "mark"
    assert not mark.exists(), mark.read_text()
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_comparison_s_runs_workers_and_aim_run_no_file_that_lies_around(planted: Path) -> None:
    out = planted.parent / "out"
    command = [*SACGLAM, "compare", "quickstart", "--seeds", "1", "--out", str(out), "--threads", "1", *OVERRIDES]
    assert_nothing_ran(run([*command, "--set", "tracking.to=auto"], planted), planted)


@pytest.mark.slow
def test_ray_s_workers_run_no_file_that_lies_around(planted: Path) -> None:
    pytest.importorskip("deepspeed")
    command = [*SACGLAM, "train", "--out", str(planted.parent / "out"), "--set", "threads=1", *OVERRIDES]
    places = ("learners.count=1", "device=cpu")
    assert_nothing_ran(run([*command, *(word for each in places for word in ("--set", each))], planted), planted)


def test_the_doctor_s_probes_run_no_file_that_lies_around(planted: Path) -> None:
    program = "from sacglam.tools.doctor import probe; found = probe('import json'); assert not found[1], found"
    assert_nothing_ran(run([sys.executable, "-P", "-c", program], planted), planted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "path"), [(["-P", "-m", "sacglam"], "."), (["-m", "sacglam"], "")], ids=["PYTHONPATH", "python -m"]
)
def test_a_comparison_s_workers_find_your_own_environment(start: list[str], path: str, tmp_path: Path) -> None:
    (tmp_path / "house.py").write_text(code_blocks()[0])
    command = [sys.executable, *start, "compare", "quickstart", "--seeds", "1", "--out", "out", "--threads", "1"]
    settings = [*OVERRIDES, "--set", "env={name: 'house:House', copies: 8, workers: 1}"]
    done = run([*command, *settings], tmp_path, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
