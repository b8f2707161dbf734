"""Runs in Weights & Biases, Trackio and TensorBoard: as they are where they are installed, and as stand-ins."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sacglam import subprocesses
from sacglam.config import TrackingConfig
from sacglam.runs.directory import RunDirectory
from sacglam.runs.display import Display
from sacglam.tools.tracking import sidecar

STAND_IN = '''
import json, os
from pathlib import Path

class Writer:
    """Writes each scalar as a line of one file."""
    def __init__(self, folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.file = open(Path(folder) / f"events.out.tfevents.{os.getpid()}", "w")
    def add_scalar(self, label, value, step):
        self.file.write(json.dumps([label, value, step]) + "\\n")
    def flush(self):
        self.file.flush()
    def close(self):
        self.file.close()
'''


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> RunDirectory:
    """A finished run in a folder of its own."""
    ignored = shutil.ignore_patterns("checkpoints", "adapter")
    return RunDirectory.open(Path(shutil.copytree(tiny_run, tmp_path / "runs" / "tiny", ignore=ignored)))


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package `tensorboard` that processes started from here find first."""
    package = tmp_path / "lib" / "tensorboard"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "summary.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(package.parent)


def track(run: RunDirectory, name: str) -> subprocess.CompletedProcess[str]:
    command = subprocesses.python("-m", "sacglam", "track", str(run.root), "--to", name)
    return subprocess.run(command, env=subprocesses.environment(), capture_output=True, text=True, check=False)


def expected(run: RunDirectory, name: str) -> dict[int, float]:
    return {line["env_steps"]: line[name] for line in run.metrics() if name in line}


def scalars(folder: Path) -> list[list[Any]]:
    return [json.loads(line) for file in folder.glob("events.*") for line in file.read_text().splitlines()]


@pytest.mark.usefixtures("stand_in")
def test_a_run_is_in_a_tracker_once_however_often_it_is_imported(run: RunDirectory) -> None:
    for _ in range(2):
        done = track(run, "tensorboard")
        assert done.returncode == 0, done.stderr
    found = scalars(run.root.parent / "tensorboard" / "tiny")
    assert {step: value for label, value, step in found if label == "entropy"} == expected(run, "entropy")
    assert len([each for each in found if each[0] == "entropy"]) == len(expected(run, "entropy"))
    summary = run.summary()
    assert summary
    assert ["success/eval/overall", summary["success_after"]["overall"], summary["env_steps"]] in found


@pytest.mark.usefixtures("stand_in")
def test_a_tracker_that_is_killed_says_so_and_an_import_makes_up_for_it(run: RunDirectory) -> None:
    before, said = run.metrics_file.read_bytes(), []

    class Notes(Display):
        def note(self, text: str) -> None:
            said.append(text)

    started = sidecar.sidecar_for(run, TrackingConfig(to=["tensorboard"]), Notes())
    started.start()
    [process] = [each._process for each in started.each]
    assert process
    deadline = time.monotonic() + 120
    while not scalars(folder := run.root.parent / "tensorboard" / "tiny"):
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    started.check()
    assert len(said) == 1
    assert "TensorBoard does not show this run: its process died of signal 9" in said[0]
    assert f"sacglam track {run.root} --to tensorboard" in said[0]
    started.close()
    assert run.metrics_file.read_bytes() == before
    assert track(run, "tensorboard").returncode == 0
    assert {step: value for label, value, step in scalars(folder) if label == "entropy"} == expected(run, "entropy")


def test_a_tracker_that_is_not_installed_is_explained(run: RunDirectory) -> None:
    missing = [name for name in sidecar.TITLES if not sidecar.installed(name)]
    if not missing:
        pytest.skip("all are installed")
    done = track(run, missing[0])
    assert done.returncode == 1
    assert f"pip install 'sacglam[{missing[0]}]'" in done.stderr


def test_what_tensorboard_itself_reads(run: RunDirectory) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert [track(run, "tensorboard").returncode for _ in range(2)] == [0, 0]
    folder = str(run.root.parent / "tensorboard" / "tiny")
    events = accumulator.EventAccumulator(folder, size_guidance={"tensors": 0})
    events.Reload()
    found = {each.step: float(each.tensor_proto.float_val[0]) for each in events.Tensors("entropy")}
    assert found == pytest.approx(expected(run, "entropy"), abs=1e-6)
    assert len(events.Tensors("entropy")) == len(found)


def test_what_trackio_itself_reads(run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    assert [track(run, "trackio").returncode for _ in range(2)] == [0, 0]
    program = (
        "import json, trackio; from trackio.sqlite_storage import SQLiteStorage as S; "
        "[run] = trackio.Api().runs('sacglam'); print(json.dumps(S.get_logs('sacglam', run.name, run_id=run.id)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    rows = [row for row in json.loads(done.stdout.splitlines()[-1]) if "entropy" in row]
    assert [(row["step"], row["entropy"]) for row in rows] == [*expected(run, "entropy").items()]


def test_an_offline_run_of_wandb_is_there_once(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert [track(run, "wandb").returncode for _ in range(2)] == [0, 0]
    [folder] = (run.root.parent / "wandb").glob("offline-run-*")
    known = sidecar.read_hash(run, "wandb")
    assert folder.name.endswith(f"-{known}")
    assert b"entropy" in (folder / f"run-{known}.wandb").read_bytes()
