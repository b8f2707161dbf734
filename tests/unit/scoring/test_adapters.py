"""Adapters on an engine's disk."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from sacglam.errors import EngineError
from sacglam.scoring.vllm.engine import unpacked
from sacglam.types import Adapter

FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"\x00\x01"}


@pytest.fixture(autouse=True)
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory for these tests alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_an_adapter_is_on_disk_within_the_context_only(disk: Path) -> None:
    with unpacked(Adapter(40, FILES), "v1") as folder:
        assert folder.name == "v1"
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
        assert folder.is_relative_to(disk)
    assert list(disk.iterdir()) == []


def test_two_engines_on_one_machine_share_no_folder() -> None:
    adapter = Adapter(1, FILES)
    with unpacked(adapter, "v1") as one, unpacked(adapter, "v1") as other:
        assert one != other


def test_an_adapter_that_is_rejected_leaves_nothing_on_disk(disk: Path) -> None:
    with pytest.raises(RuntimeError, match="rejected"), unpacked(Adapter(1, FILES), "v1"):
        raise RuntimeError("rejected")
    assert list(disk.iterdir()) == []


def test_a_disk_that_refuses_is_an_error_that_leaves_nothing(disk: Path) -> None:
    adapter = Adapter(1, {**FILES, "x" * 300: b""})
    with pytest.raises(EngineError, match="version 1 cannot be written"), unpacked(adapter, "v1"):
        pass
    assert list(disk.iterdir()) == []
