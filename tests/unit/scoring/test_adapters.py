"""Adapters on an engine's disk."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import safetensors.torch
import torch

from sacglam.errors import DivergenceError, EngineError
from sacglam.scoring.vllm.adapters import AdapterFolders, check_finite
from sacglam.types import Adapter

FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"\x00\x01"}


@pytest.fixture(autouse=True)
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary directory of these tests alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_an_adapter_is_there_whole_as_long_as_it_is_needed(disk: Path) -> None:
    with AdapterFolders().unpacked(Adapter(40, FILES)) as (number, folder):
        assert number == 1
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
        assert folder.is_relative_to(disk)
    assert list(disk.iterdir()) == []


def test_numbers_and_folders_never_come_again_though_versions_do() -> None:
    folders = AdapterFolders()
    seen = []
    for version in (3, 3, 1):
        with folders.unpacked(Adapter(version, FILES)) as found:
            seen.append(found)
    assert [number for number, _ in seen] == [1, 2, 3]
    assert len({folder for _, folder in seen}) == 3


def test_two_engines_on_one_machine_share_no_folder() -> None:
    with AdapterFolders().unpacked(Adapter(1, FILES)) as one, AdapterFolders().unpacked(Adapter(1, FILES)) as other:
        assert one[1] != other[1]


def test_an_adapter_that_is_not_taken_leaves_nothing(disk: Path) -> None:
    with pytest.raises(RuntimeError, match="not taken"), AdapterFolders().unpacked(Adapter(1, FILES)):
        raise RuntimeError("not taken")
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize("missing", list(FILES))
def test_an_adapter_that_lacks_a_file_is_refused(missing: str, disk: Path) -> None:
    files = {name: content for name, content in FILES.items() if name != missing}
    with (
        pytest.raises(EngineError, match=rf"version 8 to have .*{missing}"),
        AdapterFolders().unpacked(Adapter(8, files)),
    ):
        pass
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize("name", ["../outside", "inner/file", "/absolute", ".."])
def test_a_file_cannot_leave_its_folder(name: str, disk: Path) -> None:
    adapter = Adapter(1, {**FILES, name: b""})
    with pytest.raises(EngineError, match="plain names"), AdapterFolders().unpacked(adapter):
        pass
    assert list(disk.iterdir()) == []


def test_a_disk_that_refuses_is_an_error_that_leaves_nothing(disk: Path) -> None:
    adapter = Adapter(1, {**FILES, "x" * 300: b""})
    with pytest.raises(EngineError, match="version 1 cannot be written"), AdapterFolders().unpacked(adapter):
        pass
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite_are_refused(value: float) -> None:
    tensors = {"a.lora_A.weight": torch.zeros(2, 3), "a.lora_B.weight": torch.zeros(3, 2)}
    good = Adapter(6, {**FILES, "adapter_model.safetensors": safetensors.torch.save(tensors)})
    check_finite(good)
    tensors["a.lora_B.weight"][2, 1] = value
    with pytest.raises(DivergenceError, match=r"version 6 .* first in a.lora_B.weight.*diverged"):
        check_finite(Adapter(6, {**FILES, "adapter_model.safetensors": safetensors.torch.save(tensors)}))


def test_weights_that_are_no_tensors_are_refused() -> None:
    with pytest.raises(EngineError, match="version 6 to hold tensors"):
        check_finite(Adapter(6, FILES))
