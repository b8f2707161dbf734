"""Checkpoints on disk: written aside and renamed, verified by checksum, never pickled."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.torch import load_file, save_file
from torch import Tensor

from sacglam.errors import CheckpointError

_PREFIX = "step-"
_WRITING = ".writing-"
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """A run at one moment: tensors by name, number columns by name, and JSON values."""

    tensors: dict[str, Tensor]
    arrays: dict[str, npt.NDArray[Any]]
    values: dict[str, Any]


def save(root: Path, step: int, checkpoint: Checkpoint, keep: int) -> Path:
    """Write the checkpoint of `step` and drop all but the newest `keep`; the folder it lies in.

    A reader sees all of a checkpoint or nothing: it is written beside, synced, and renamed.

    Raises:
        CheckpointError: it cannot be written, e.g. on a full disk; earlier checkpoints are untouched.
    """
    folder, writing = root / f"{_PREFIX}{step:010d}", root / f"{_WRITING}{step:010d}"
    try:
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir(parents=True)
        _write(writing, checkpoint)
        if folder.exists():
            shutil.rmtree(folder)
        writing.rename(folder)
        _sync(root)
    except OSError as error:
        shutil.rmtree(writing, ignore_errors=True)
        kept = f"the newest whole checkpoint is {steps(root)[-1]}" if steps(root) else "there is no earlier one"
        cause = "the disk is full" if error.errno == errno.ENOSPC else f"{error.strerror or error}"
        raise CheckpointError(
            f"cannot write checkpoint {folder}: {cause}; {kept}. Free some space, then go on with --resume {root.parent}"
        ) from error
    for old in steps(root)[:-keep]:
        shutil.rmtree(old)
    return folder


def load_newest(root: Path, warn: Callable[[str], None]) -> tuple[Path, Checkpoint]:
    """The newest checkpoint that is whole; tells `warn` of each damaged one it passes over.

    Raises:
        CheckpointError: there is none.
    """
    for folder in reversed(steps(root)):
        try:
            return folder, load(folder)
        except CheckpointError as error:
            warn(f"{error}; falling back to the one before")
    raise CheckpointError(f"expected a whole checkpoint in {root}, found none; start the run anew with another --out")


def load(folder: Path) -> Checkpoint:
    """Read and verify one checkpoint.

    Raises:
        CheckpointError: a file is missing or does not match its checksum.
    """
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        for name, checksum in manifest.items():
            if _checksum(folder / name) != checksum:
                raise CheckpointError(f"checkpoint {folder} is damaged: {name} does not match its checksum")
        with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
            return Checkpoint(
                tensors=load_file(folder / "tensors.safetensors"),
                arrays=dict(arrays),
                values=json.loads((folder / "values.json").read_text()),
            )
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"checkpoint {folder} is incomplete: {error}") from error


def steps(root: Path) -> list[Path]:
    """The checkpoints under `root`, oldest first; what is still being written is not among them."""
    return sorted(root.glob(f"{_PREFIX}*"))


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    # Clones, because safetensors refuses tensors that share memory, and a target may share its heads' buffers.
    save_file({n: t.detach().cpu().contiguous().clone() for n, t in checkpoint.tensors.items()}, folder / "tensors.safetensors")
    with (folder / "arrays.npz").open("wb") as file:
        np.savez(file, **checkpoint.arrays)  # type: ignore[arg-type]
    (folder / "values.json").write_text(json.dumps(checkpoint.values))
    manifest = {path.name: _checksum(path) for path in sorted(folder.iterdir())}
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=2))
    for path in folder.iterdir():
        _sync(path)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
