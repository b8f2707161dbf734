"""Training is never stopped by its sidecar. Processes are real; what they run is not Aim."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typing_extensions import override

from sacglam.config.sections import TrackingConfig
from sacglam.errors import TrackingError
from sacglam.runs.directory import RunDirectory
from sacglam.runs.display import Display
from sacglam.tools.tracking import sidecar
from sacglam.tools.tracking.aim import serve


class Notes(Display):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.said: list[str] = []

    @override
    def note(self, text: str) -> None:
        self.said.append(text)


def test_a_failure_is_reported_once_with_its_fix(tmp_path: Path) -> None:
    display = Notes()
    failing = sidecar.Sidecars(RunDirectory(tmp_path / "no-run"), ["aim"], display)
    failing.start()
    failing.close()
    failing.check()
    failing.close()
    (said,) = display.said
    assert "expected a run directory with a config.yaml" in said
    assert f"sacglam track {tmp_path / 'no-run'} --to aim" in said


def test_a_process_that_cannot_be_started_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    display = Notes()
    failing = sidecar.Sidecars(RunDirectory(tmp_path), ["aim"], display)
    failing.start()
    failing.check()
    failing.close()
    assert len(display.said) == 1
    assert "cannot be started" in display.said[0]


def test_a_process_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(hanging))
    display = Notes()
    monkeypatch.setattr(sidecar, "_FINISH_S", 0.05)
    hung = sidecar.Sidecars(RunDirectory(tmp_path), ["aim"], display)
    hung.start()
    hung.close()
    assert len(display.said) == 1
    assert "took more than" in display.said[0]


def test_where_aim_is_not_installed_it_is_left_out_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar, "installed", lambda name: False)
    run = RunDirectory(tmp_path)
    display = Notes()
    left_out = sidecar.sidecar_for(run, TrackingConfig(), display)
    left_out.start()
    left_out.check()
    left_out.close()
    assert display.said == []
    for name in sidecar.TITLES:
        with pytest.raises(TrackingError, match=rf"tracking.to has {name}, but .*pip install 'sacglam\[{name}\]'"):
            sidecar.sidecar_for(run, TrackingConfig(to=[name]), Notes())
    with pytest.raises(TrackingError, match="pip install"):
        serve(tmp_path, 43800, lambda address, pages: None)


def test_each_tracker_has_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar, "installed", lambda name: True)
    run = RunDirectory(tmp_path / "no-run")
    started = sidecar.sidecar_for(run, TrackingConfig(to=["trackio", "tensorboard"]), display := Notes())
    assert started.names == ["trackio", "tensorboard"]
    started.start()
    started.close()
    assert {said.partition(" does not show")[0] for said in display.said} == {"Trackio", "TensorBoard"}
    assert len(display.said) == 2


def test_the_repository_is_next_to_the_run(tmp_path: Path) -> None:
    assert sidecar.repo_of(RunDirectory(tmp_path / "runs" / "one")) == tmp_path / "runs"


def test_ids_are_in_a_file_of_the_run_the_last_used_first(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert sidecar.ids(run, "aim") == []
    for used, expected in (("abc", ["abc"]), ("def", ["def", "abc"]), ("abc", ["abc", "def"])):
        sidecar.write_id(run, "aim", used)
        assert sidecar.ids(run, "aim") == expected
    assert json.loads((tmp_path / "aim.json").read_text()) == {"hash": "abc", "others": ["def"]}


@pytest.mark.parametrize(
    "content", ["[]", '{"hash": 3}', '{"hash": "a", "others": ["../up"]}', '{"hash": "../up"}', '{"hash": ""}', "{"]
)
def test_a_damaged_file_has_no_ids(content: str, tmp_path: Path) -> None:
    (tmp_path / "aim.json").write_text(content)
    assert sidecar.ids(RunDirectory(tmp_path), "aim") == []
