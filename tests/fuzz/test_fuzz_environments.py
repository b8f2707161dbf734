"""Environments that misbehave, in this process and in workers: refused with a word on what and where, or they train."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from sacglam import cli
from sacglam.config import parse
from sacglam.envs import calls, checks
from sacglam.envs.workers import close_workers
from sacglam.errors import SacglamError
from sacglam.training import resume, train
from tests import fuzz
from tests.conftest import sacglam
from tests.fuzz import COUNTS
from tests.fuzz.common import TINY, quick_runs, refused, within
from tests.fuzz.misbehaving import FAULTS, Fault
from tests.launcher import ROOT, start

pytestmark = pytest.mark.slow

NAME = "tests.fuzz.misbehaving:make"
ENDING = ["leaves", "dies", "closes files"]
"""What no process survives: they are for workers."""
SURVIVED = [name for name in FAULTS if name not in (*ENDING, "hangs")]
SIDE_EFFECTS = SURVIVED[SURVIVED.index("prints") :]
IN_WORKERS = SURVIVED if fuzz.EXAMPLES else [*SURVIVED[:: len(SURVIVED) // 10], *SIDE_EFFECTS]


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What an environment may do to its process is undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checks, "MAX_STEPS", checks.MAX_STEPS)
    monkeypatch.setattr(calls, "PATIENCE_S", calls.PATIENCE_S)
    quick_runs(monkeypatch)
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        yield
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    close_workers()


@pytest.mark.parametrize(
    ("name", "workers"), [*((name, 0) for name in SURVIVED), *((name, 2) for name in [*IN_WORKERS, *ENDING])]
)
def test_training(name: str, workers: int) -> None:
    fault, env = FAULTS[name], {"name": NAME, "options": {"fault": name}, "copies": 2, "workers": workers}
    with within(60):
        try:
            summary = train(parse({**TINY, "env": env}), Path("run"))
        except SacglamError as error:
            outcome = refused(error)
            explained(fault, str(error))
        else:
            outcome = "trains"
            assert not fault.said or (fault.alone and workers), "it was not noticed"
            assert summary["finished"]
            if not workers:
                resumes(summary)
    COUNTS[f"environments, {workers} workers: {outcome}"] += 1


def explained(fault: Fault, said: str) -> None:
    assert fault.said, f"it does no harm, but: {said}"
    assert re.search(fault.said, said, re.DOTALL), said
    assert said.encode()


def resumes(summary: dict[str, Any]) -> None:
    """The run continues from its last checkpoint but one, with episodes under way, to the same end."""
    shutil.rmtree(max(Path("run/checkpoints").iterdir(), key=lambda folder: folder.name))
    assert resume(Path("run"), trusted=True)["success_after"] == summary["success_after"]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_hangs_is_reported(workers: int, tmp_path: Path) -> None:
    settings = ["env.options.fault=hangs", f"env.workers={workers}", "env.copies=2", f"env.name={NAME}"]
    command = sacglam("train", "--out", tmp_path / "run", *(word for each in settings for word in ("--set", each)))
    with (tmp_path / "said").open("w") as said:
        process = start(command, stderr=said, cwd=ROOT)  # some packages install a module that is called tests, too
    where = r"environment .*step\(\d\) after 0 steps, goal .*"
    message = re.compile(f"{where}{FAULTS['hangs'].said}.*misbehaving.py", re.DOTALL)
    with within(120):
        try:
            while not message.search(text := (tmp_path / "said").read_text()):
                assert process.poll() is None, text
                time.sleep(0.1)
        finally:
            process.kill()


@pytest.mark.parametrize("name", SURVIVED)
def test_check(name: str) -> None:
    arguments = ["envs", "--check", NAME, "--set", f"env.options.fault={name}", "--episodes", "4", "--json"]
    with within(60):
        done = CliRunner().invoke(cli.app, arguments)
    if isinstance(done.exception, SacglamError):
        outcome = refused(done.exception)
        explained(FAULTS[name], str(done.exception))
    else:
        outcome = "passes"
        assert done.exit_code == 0
        assert not FAULTS[name].said or name in ("text is huge",), "it was not noticed"
        assert json.loads(done.stdout)["episodes"] == 4
    COUNTS[f"environments, envs --check: {outcome}"] += 1
