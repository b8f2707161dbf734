"""Runs in Aim, Weights & Biases, Trackio and TensorBoard where they are installed, and in a stand-in."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sacglam import subprocesses
from sacglam.config.sections import TrackingConfig
from sacglam.runs.directory import RunDirectory
from sacglam.runs.display import Display
from sacglam.tools.tracking import sidecar
from tests.conftest import tiny_train
from tests.integration.processes import below
from tests.launcher import Launched, start

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


def track(run: RunDirectory, name: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = subprocesses.python("-m", "sacglam", "track", str(run.root), "--to", name, *options)
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
def test_runs_whose_folders_have_one_name_stay_apart_in_a_tracker(run: RunDirectory, tmp_path: Path) -> None:
    for label in ("a", "b"):
        folder = tmp_path / "compared" / label / "seed0"
        shutil.copytree(run.root, folder)
        assert track(RunDirectory(folder), "tensorboard", "--repo", str(tmp_path / "compared")).returncode == 0
    found = [scalars(tmp_path / "compared" / "tensorboard" / label / "seed0") for label in ("a", "b")]
    assert found[0]
    assert found[0] == found[1]


@pytest.mark.usefixtures("stand_in")
def test_a_tracker_that_is_killed_says_so_and_an_import_makes_up_for_it(run: RunDirectory) -> None:
    before, said = run.metrics_file.read_bytes(), []

    class Notes(Display):
        def note(self, text: str) -> None:
            said.append(text)

    started = sidecar.sidecar_for(run, TrackingConfig(to=["tensorboard"]), Notes())
    started.start()
    [process] = started._processes.values()
    deadline = time.monotonic() + 300
    while not scalars(folder := run.root.parent / "tensorboard" / "tiny"):
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    started.check()
    assert len(said) == 1
    assert "TensorBoard does not show this run: its process was killed by signal 9" in said[0]
    assert f"sacglam track {run.root} --to tensorboard" in said[0]
    started.close()
    assert run.metrics_file.read_bytes() == before
    assert track(run, "tensorboard").returncode == 0
    assert {step: value for label, value, step in scalars(folder) if label == "entropy"} == expected(run, "entropy")


def test_where_trackio_writes_is_not_its_folder(run: RunDirectory, tmp_path: Path) -> None:
    done = track(run, "trackio", "--repo", str(tmp_path))
    assert done.returncode == 2
    assert "TRACKIO_DIR" in done.stderr


def test_a_tracker_that_is_not_installed_is_explained(run: RunDirectory) -> None:
    missing = [name for name in sidecar.TITLES if not sidecar.installed(name)]
    if not missing:
        pytest.skip("all are installed")
    done = track(run, missing[0])
    assert done.returncode == 1
    assert f"pip install 'sacglam[{missing[0]}]'" in done.stderr


def in_aim(run: RunDirectory) -> Iterator[tuple[int, float]]:
    from tests.integration import test_aim

    [known] = sidecar.ids(run, "aim")
    assert test_aim.hashes(run.root.parent) == {known}
    yield from test_aim.curve(test_aim.in_aim(run.root.parent, known), "entropy").items()


def in_tensorboard(run: RunDirectory) -> Iterator[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.root.parent / "tensorboard" / run.root.name), size_guidance={"tensors": 0})
    events.Reload()
    for each in events.Tensors("entropy"):
        yield each.step, float(each.tensor_proto.float_val[0])


def in_trackio(run: RunDirectory) -> Iterator[tuple[int, float]]:
    program = (
        "import json, trackio; from trackio.sqlite_storage import SQLiteStorage as S; "
        "[run] = trackio.Api().runs('sacglam'); print(json.dumps(S.get_logs('sacglam', run.name, run_id=run.id)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    for row in json.loads(done.stdout.splitlines()[-1]):
        if "entropy" in row:
            yield row["step"], row["entropy"]


def logged(log: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format, which begins with seven bytes of wandb's own."""
    place, record = 7, b""
    while place < len(log):
        if 0 < (left := -place % 2**15) < 7:  # a block ends with zeros where no header fits
            place += left
            continue
        length, kind = struct.unpack("<xxxxHB", log[place : place + 7])
        record += log[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # the whole of it, or its last part
            yield record
            record = b""


def in_wandb(run: RunDirectory) -> Iterator[tuple[int, float]]:
    from wandb.proto.wandb_internal_pb2 import Record

    [known] = sidecar.ids(run, "wandb")
    [file] = (run.root.parent / "wandb").glob(f"offline-run-*-{known}/run-{known}.wandb")
    for data in logged(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        row = {"/".join([item.key, *item.nested_key]).strip("/"): item.value_json for item in record.history.item}
        if "entropy" in row:
            yield int(float(row["env_steps"])), float(row["entropy"])


ENTROPY = {"aim": in_aim, "tensorboard": in_tensorboard, "trackio": in_trackio, "wandb": in_wandb}
"""What a tracker itself reads: the entropy at each environment step."""
TRACKERS = [
    pytest.param(name, marks=pytest.mark.skipif(not sidecar.installed(name), reason=f"{name} is not installed"))
    for name in ENTROPY
]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trackers keep what they know in a folder of this test, and reach no server."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("WANDB_MODE", "offline")


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_holds_a_run_once_however_often_it_is_imported(name: str, run: RunDirectory) -> None:
    for _ in range(2):
        done = track(run, name)
        assert done.returncode == 0, done.stderr
    assert sorted(ENTROPY[name](run)) == approximately(expected(run, "entropy"))


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", TRACKERS)
def test_a_run_goes_on_when_its_tracker_is_killed(name: str, tiny_run: Path, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "runs" / "live")
    with (tmp_path / "out").open("wb") as out:
        training = start(tiny_train(run.root, f"tracking.to=[{name}]"), out)

    def process_ids() -> list[int]:
        return [each.pid for each in below(training.pid) if f"-m sacglam.tools.tracking.sync {name}" in each.title]

    until(training, lambda: bool(run.metrics() and process_ids()))
    training.send_signal(signal.SIGSTOP)  # so that the run is not over before the tracker has begun
    until(training, (run.root / f"{name}.json").exists)
    [tracker] = process_ids()
    os.kill(tracker, signal.SIGKILL)
    training.send_signal(signal.SIGCONT)
    assert training.wait(300) == 0
    assert (tmp_path / "out").read_text().count("its process was killed by signal 9") == 1
    assert untimed(run) == untimed(RunDirectory(tiny_run))
    for _ in range(2):
        done = track(run, name)
        assert done.returncode == 0, done.stderr
        assert sorted(ENTROPY[name](run)) == approximately(expected(run, "entropy"))


def untimed(run: RunDirectory) -> list[dict[str, float]]:
    return [line | {"seconds": 0.0, "cpu_seconds": 0.0} for line in run.metrics()]


def until(training: Launched, reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not reached():
        assert training.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def approximately(values: dict[int, float]) -> Any:
    """The same pairs, rounded to what float32 holds."""
    return [(step, pytest.approx(value, abs=1e-5)) for step, value in values.items()]
