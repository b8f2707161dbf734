"""Checkpoints on disk: exact, whole or not there, checked against damage, and free of pickles."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import pickle
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sacglam import memory
from sacglam.errors import CheckpointError
from sacglam.runs import checkpoint
from sacglam.runs.checkpoint import Checkpoint, load, restore_newest, save, steps

FILES = ("tensors.safetensors", "values.json", "manifest.json")


def _small(mark: int = 0, updates: int = 0) -> Checkpoint:
    steps = 0 if updates else mark
    return Checkpoint(
        {"w": torch.full((3,), float(mark))},
        {"mark": mark, "progress": {"env_steps": steps, "updates": updates}},
    )


def _mark(found: Checkpoint) -> int:
    mark = int(found.values["mark"])
    assert found.tensors["w"].tolist() == [float(mark)] * 3
    return mark


def _newest(root: Path) -> tuple[int, list[str]]:
    """The mark of the newest intact checkpoint, and the warnings on the way to it."""
    warnings: list[str] = []
    return restore_newest(root, _mark, warnings.append)[1], warnings


def _names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_round_trip_is_exact(tmp_path: Path) -> None:
    shared = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    original = Checkpoint(
        tensors={
            "plain": shared,
            "transposed": shared.T,
            "shared": shared[1:],
            "parameter": torch.nn.Parameter(shared * 2),
            "half": shared.bfloat16(),
            "double": shared.double() / 3,
            "scalar": torch.tensor(0.1),
            "empty": torch.zeros(0, 5),
            "odd": torch.tensor([1e-40, -3e38, -0.0]),
            "rng": torch.get_rng_state(),
            "step": torch.tensor(7, dtype=torch.int64),
            "mask": torch.tensor([True, False]),
        },
        values={
            "rng": np.random.default_rng(3).bit_generator.state,  # integers of 128 bits
            "float": 0.1 + 0.2,
            "none": None,
            "texts": ["über", "\n", ""],
        },
    )
    found = load(save(tmp_path, (5, 0), original))
    assert found.tensors.keys() == original.tensors.keys()
    for name, tensor in original.tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        torch.testing.assert_close(found.tensors[name], tensor.detach(), rtol=0, atol=0)
    assert torch.signbit(found.tensors["odd"]).tolist()[2], "-0.0 became 0.0"
    assert found.values == original.values


def test_an_empty_checkpoint_survives(tmp_path: Path) -> None:
    assert load(save(tmp_path, (0, 0), Checkpoint({}, {}))) == Checkpoint({}, {})


def test_what_was_loaded_can_be_written_to(tmp_path: Path) -> None:
    folder = save(tmp_path, (1, 0), _small(2))
    found = load(folder)
    found.tensors["w"].add_(1)
    assert _mark(load(folder)) == 2


def test_steps_are_in_order_and_strangers_are_none(tmp_path: Path) -> None:
    for step in (1000, 20_000):
        save(tmp_path, (step, 0), _small())
    for stranger in ("step-0000000950.bak", "step-x", ".writing-0000030000", "notes"):
        (tmp_path / stranger).mkdir()
    assert [folder.name for folder in steps(tmp_path)] == ["step-0000001000-0000000000", "step-0000020000-0000000000"]
    assert steps(tmp_path / "missing") == []


def test_the_two_newest_are_kept(tmp_path: Path) -> None:
    for step in range(1, 6):
        folder = save(tmp_path, (step, 0), _small(step))
        assert folder == steps(tmp_path)[-1]
    assert _names(tmp_path) == ["step-0000000004-0000000000", "step-0000000005-0000000000"]
    assert _newest(tmp_path) == (5, [])


def test_the_same_step_is_replaced(tmp_path: Path) -> None:
    save(tmp_path, (1, 0), Checkpoint({}, {"text": "first"}))
    folder = save(tmp_path, (1, 0), Checkpoint({}, {"text": "second"}))
    assert load(folder).values == {"text": "second"}
    assert _names(tmp_path) == [folder.name]


def test_initial_updates_at_the_same_step_are_later(tmp_path: Path) -> None:
    for updates in (100, 200, 300):
        save(tmp_path, (0, updates), _small(updates, updates))
    assert _names(tmp_path) == ["step-0000000000-0000000200", "step-0000000000-0000000300"]
    assert _newest(tmp_path) == (300, [])


def test_running_out_of_memory_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, (1, 0), _small(1))
    save(tmp_path, (2, 0), _small(2))
    monkeypatch.setattr(memory, "free_bytes", lambda device: 10)
    with pytest.raises(MemoryError, match="the checkpoint has"):
        _newest(tmp_path)
    monkeypatch.undo()
    assert _newest(tmp_path) == (2, [])
    monkeypatch.setattr(memory, "total_bytes", lambda device: 10)  # no run of this machine has written as much
    with pytest.raises(CheckpointError, match="expected an intact checkpoint"):
        _newest(tmp_path)


# Interrupted while writing


def test_a_half_written_folder_is_ignored_and_cleared_away(tmp_path: Path) -> None:
    save(tmp_path, (1, 0), _small(1))
    left = tmp_path / ".writing-0000000002"
    shutil.copytree(steps(tmp_path)[0], left)
    (left / "manifest.json").unlink()
    assert _newest(tmp_path) == (1, [])
    save(tmp_path, (3, 0), _small(3))
    assert not left.exists()
    assert _newest(tmp_path) == (3, [])


@pytest.mark.parametrize("moment", range(4))
def test_a_crash_while_writing_leaves_nothing_that_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    save(tmp_path, (1, 0), _small(1))
    synced: list[Path] = []

    def crash(path: Path) -> None:
        if len(synced) == moment:
            raise KeyboardInterrupt
        synced.append(path)

    monkeypatch.setattr(checkpoint, "_sync", crash)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, (2, 0), _small(2))
    monkeypatch.undo()
    assert [folder.name for folder in steps(tmp_path)] == ["step-0000000001-0000000000"]
    assert _newest(tmp_path) == (1, [])


def test_everything_is_on_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def note(path: Path) -> None:
        assert (path == tmp_path) == bool(steps(tmp_path))
        synced.append(path.name)

    monkeypatch.setattr(checkpoint, "_sync", note)
    save(tmp_path, (1, 0), _small())
    assert sorted(synced) == sorted([*FILES, ".writing", tmp_path.name])
    assert synced[-1] == tmp_path.name


# Damage


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES: list[Callable[[Path], None]] = [_flip, _truncate, _empty, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES, ids=["flip", "truncate", "empty", "delete"])
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(
    tmp_path: Path, file: str, damage: Callable[[Path], None]
) -> None:
    save(tmp_path, (1, 0), _small(1))
    folder = save(tmp_path, (2, 0), _small(2))
    damage(folder / file)
    with pytest.raises(CheckpointError, match=folder.name):
        load(folder)
    mark, warnings = _newest(tmp_path)
    assert mark == 1
    assert len(warnings) == 1
    assert str(folder) in warnings[0]
    assert "falling back" in warnings[0]


@settings(deadline=None, max_examples=80)
@given(st.sampled_from(FILES), st.integers(0, 10**6), st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(
    tmp_path_factory: pytest.TempPathFactory, file: str, place: int, change: int
) -> None:
    folder = save(tmp_path_factory.mktemp("damage"), (1, 0), _small(3))
    content = bytearray((folder / file).read_bytes())
    content[place % len(content)] ^= change
    (folder / file).write_bytes(content)
    try:
        found = load(folder)
    except CheckpointError:
        return
    assert file == "manifest.json", "only white space of the manifest does not matter"
    assert _mark(found) == 3


@pytest.mark.parametrize("manifest", ["{}", "[]", "null", "3", '"text"', '{"tensors.safetensors": null}'])
def test_a_manifest_that_vouches_for_nothing_is_damage(tmp_path: Path, manifest: str) -> None:
    folder = save(tmp_path, (1, 0), _small())
    (folder / "manifest.json").write_text(manifest)
    with pytest.raises(CheckpointError, match=folder.name):
        load(folder)


def test_where_all_are_damaged_it_says_so(tmp_path: Path) -> None:
    for step in (1, 2):
        _flip(save(tmp_path, (step, 0), _small(step)) / "values.json")
    warnings: list[str] = []
    with pytest.raises(CheckpointError, match=f"intact checkpoint in {tmp_path}"):
        restore_newest(tmp_path, _mark, warnings.append)
    assert [("step-0000000002" in w, "step-0000000001" in w) for w in warnings] == [(True, False), (False, True)]
    assert warnings[1].endswith("there is no earlier one")


def test_where_there_is_none_it_says_so(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "missing"):
        with pytest.raises(CheckpointError, match="found none"):
            restore_newest(root, _mark, lambda warning: None)


def test_resuming_before_damaged_checkpoints_keeps_the_new_ones(tmp_path: Path) -> None:
    save(tmp_path, (10, 0), _small(10))
    _flip(save(tmp_path, (20, 0), _small(20)) / "values.json")
    assert _newest(tmp_path)[0] == 10
    save(tmp_path, (12, 0), _small(12))
    assert _names(tmp_path) == ["step-0000000010-0000000000", "step-0000000012-0000000000"]
    assert _newest(tmp_path) == (12, [])


# Cannot be written

TOO_LARGE = {
    "tensors": Checkpoint({"w": torch.zeros(600_000)}, {}),
    "values": Checkpoint({}, {"text": "x" * 2_400_000}),
}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one mebibyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a small disk here; the file size limit below tests the rest")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("part", TOO_LARGE)
def test_a_full_disk_is_named_and_leaves_the_earlier_checkpoint(small_disk: Path, part: str) -> None:
    root = small_disk / "run" / "checkpoints"
    earlier = save(root, (1, 0), _small(1))
    with pytest.raises(CheckpointError, match="the disk is full") as caught:
        save(root, (2, 0), TOO_LARGE[part])
    assert str(earlier) in str(caught.value)
    assert f"--resume {small_disk / 'run'}" in str(caught.value)
    assert _names(root) == ["step-0000000001-0000000000"], "the half-written folder takes up space"
    assert _newest(root) == (1, [])
    save(root, (3, 0), _small(3))
    assert _newest(root) == (3, [])


@contextmanager
def _files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("part", TOO_LARGE)
def test_a_write_that_fails_leaves_the_earlier_checkpoint(tmp_path: Path, part: str) -> None:
    earlier = save(tmp_path, (1, 0), _small(1))
    with pytest.raises(CheckpointError, match="File too large") as caught, _files_of_at_most(1_000_000):
        save(tmp_path, (2, 0), TOO_LARGE[part])
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EFBIG
    assert str(earlier) in str(caught.value)
    assert _names(tmp_path) == ["step-0000000001-0000000000"]
    assert _newest(tmp_path) == (1, [])


def test_the_first_write_that_fails_says_that_there_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="there is no earlier one"):
        save(tmp_path / "file", (1, 0), _small())


@pytest.mark.parametrize(("value", "said"), [(np.int64(3), "int64 is not JSON"), (math.nan, "not JSON compliant")])
def test_a_state_that_is_not_json_is_explained_and_nothing_written(value: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"{said}.*; state\(\) of .* must return JSON values"):
        save(tmp_path, (1, 0), Checkpoint({}, {"goals": {"successes": value}}))
    assert _names(tmp_path) == []


# No pickles


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return pytest.fail, ("a pickle was run",)


@pytest.mark.parametrize("name", FILES[:2])
def test_a_pickle_is_refused_when_reading(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path, (1, 0), _small())
    (folder / name).write_bytes(pickle.dumps(Bomb()))
    _vouch(folder)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(folder)


# Numbers that no run saves

UNFIT: dict[str, Checkpoint] = {
    "weights": Checkpoint({"w": torch.tensor([1.0, torch.nan])}, {}),
    "half weights": Checkpoint({"w": torch.tensor([torch.inf], dtype=torch.bfloat16)}, {}),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_numbers_that_no_run_saves_are_refused(tmp_path: Path, kind: str) -> None:
    folder = save(tmp_path, (1, 0), UNFIT[kind])
    with pytest.raises(CheckpointError, match=f"{folder.name} cannot be read"):
        load(folder)


# Checksums rewritten, so that only the content can give the damage away


def _vouch(folder: Path) -> None:
    """Make the manifest's checksums those of the files."""
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES[:2]}
    (folder / "manifest.json").write_text(json.dumps(sums))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tensors.safetensors", b""),
        ("tensors.safetensors", b"\xff" * 64),
        ("values.json", b"[]"),
        ("values.json", b"null"),
        ("values.json", b"\xff"),
        ("values.json", b"[" * 100_000),
        ("values.json", b'{"progress": []}'),
        ("values.json", b'{"mark": NaN, "progress": {"env_steps": 2, "updates": 0}}'),
        ("values.json", b'{"mark": 2, "progress": {"env_steps": -2, "updates": 0}}'),
        ("values.json", b'{"mark": 2, "progress": {"env_steps": 2, "updates": 7}}'),
        ("values.json", b'{"mark": "two", "progress": {"env_steps": 2, "updates": 0}}'),
    ],
)
def test_damage_that_its_checksum_vouches_for_falls_back_too(tmp_path: Path, name: str, content: bytes) -> None:
    save(tmp_path, (1, 0), _small(1))
    folder = save(tmp_path, (2, 0), _small(2))
    (folder / name).write_bytes(content)
    _vouch(folder)
    mark, warnings = _newest(tmp_path)
    assert mark == 1
    [warning] = warnings
    assert "step-0000000002-0000000000" in warning
    assert ("its steps and updates are [" in warning) == (b'"mark": 2' in content)
    assert warning.endswith("falling back to the one before")
