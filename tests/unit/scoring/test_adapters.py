"""Adapters on an engine's disk."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch

from sacglam.errors import DivergenceError, EngineError
from sacglam.scoring.adapters import AdapterFolders, check_finite
from sacglam.types import Adapter

FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"\x00\x01"}


def test_an_adapter_is_written_whole_into_a_folder_of_its_own() -> None:
    folders = AdapterFolders()
    number, folder = folders.write(Adapter(40, FILES))
    assert number == 1
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert list(folders.root.iterdir()) == [folder]
    folders.close()


def test_numbers_and_folders_never_come_again_though_versions_do() -> None:
    folders = AdapterFolders()
    seen = []
    for version in (3, 3, 1):
        number, folder = folders.write(Adapter(version, FILES))
        seen.append((number, folder))
        folders.remove(folder)
    assert [number for number, _ in seen] == [1, 2, 3]
    assert len({folder for _, folder in seen}) == 3
    assert list(folders.root.iterdir()) == []
    folders.close()


def test_two_engines_on_one_machine_share_no_folder() -> None:
    one, other = AdapterFolders(), AdapterFolders()
    assert one.write(Adapter(1, FILES))[1] != other.write(Adapter(1, FILES))[1]
    one.close()
    other.close()


def test_closing_leaves_nothing() -> None:
    folders = AdapterFolders()
    folders.write(Adapter(1, FILES))
    folders.close()
    assert not folders.root.exists()


@pytest.mark.parametrize("missing", list(FILES))
def test_an_adapter_that_lacks_a_file_is_refused(missing: str) -> None:
    files = {name: content for name, content in FILES.items() if name != missing}
    folders = AdapterFolders()
    with pytest.raises(EngineError, match=rf"version 8 to have .*{missing}"):
        folders.write(Adapter(8, files))
    assert list(folders.root.iterdir()) == []
    folders.close()


@pytest.mark.parametrize("name", ["../outside", "inner/file", "/absolute", ".."])
def test_a_file_cannot_leave_its_folder(name: str) -> None:
    folders = AdapterFolders()
    with pytest.raises(EngineError, match="plain names"):
        folders.write(Adapter(1, {**FILES, name: b""}))
    assert list(folders.root.iterdir()) == []
    folders.close()


def test_a_disk_that_refuses_is_an_error_that_leaves_nothing() -> None:
    folders = AdapterFolders()
    with pytest.raises(EngineError, match="version 1 cannot be written"):
        folders.write(Adapter(1, {**FILES, "x" * 300: b""}))
    assert list(folders.root.iterdir()) == []
    folders.close()


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
