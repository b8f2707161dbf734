"""Checkpoints on disk: written to a temporary folder and renamed, verified by checksum, never pickled."""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import from_json
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as format_tensors
from torch import Tensor

from sacglam import files, memory
from sacglam.errors import CheckpointError, memory_explained

T = TypeVar("T")
_NAME = re.compile(r"step-\d{10}-\d{10}")  # environment steps and updates
_KEPT = 2  # so that there is one to fall back on
_WRITING = ".writing"
_TENSORS, _VALUES, _MANIFEST = "tensors.safetensors", "values.json", "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run: named tensors, and JSON values."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


def save(root: Path, place: tuple[int, int], checkpoint: Checkpoint) -> Path:
    """Write the checkpoint after these environment steps and updates, delete all but the two newest; return its folder.

    Atomic for readers: it is written under a temporary name, synced and renamed. Checkpoints at this place or later are
    deleted: the run must have been resumed from before them because they were damaged.

    Raises:
        CheckpointError: it cannot be written, for example because the disk is full; earlier checkpoints stay intact.
    """
    folder, writing = root / _name(*place), root / _WRITING
    content = _content(checkpoint)
    try:
        files.make_folder(root)
        _drop_unfinished(root)
        writing.mkdir()
        for name, each in content.items():
            (writing / name).write_bytes(each)
            _sync(writing / name)
        _sync(writing)
        _drop(folder)  # damaged: the run was resumed from before it
        writing.rename(folder)
        _sync(root)
    except OSError as error:
        _drop_unfinished(root)
        kept = f"the newest intact checkpoint is {steps(root)[-1]}" if steps(root) else "there is no earlier one"
        cause = "the disk is full" if error.errno == errno.ENOSPC else f"{error.strerror or error}"
        raise CheckpointError(
            f"cannot write checkpoint {folder}: {cause}; {kept}. "
            f"Free some space, then resume with --resume {root.parent}"
        ) from error
    newest = [other for other in steps(root) if other <= folder][-_KEPT:]
    for other in set(steps(root)) - set(newest):
        _drop(other)
    return folder


def restore_newest(root: Path, restore: Callable[[Checkpoint], T], warn: Callable[[str], None]) -> tuple[Path, T]:
    """The newest checkpoint that `restore` accepts, and its result; `warn` is called for each one skipped.

    Raises:
        CheckpointError: there is no usable checkpoint.
    """
    for left, folder in reversed([*enumerate(steps(root))]):
        try:
            return folder, _restored(folder, restore)
        except CheckpointError as error:
            warn(f"{error}; {'falling back to the one before' if left else 'there is no earlier one'}")
    raise CheckpointError(f"expected an intact checkpoint in {root}, found none; start a new run with another --out")


def _name(env_steps: int, updates: int) -> str:
    return f"step-{env_steps:010d}-{updates:010d}"


def _restored(folder: Path, restore: Callable[[Checkpoint], T]) -> T:
    checkpoint = load(folder)
    try:
        place = [checkpoint.values["progress"][name] for name in ("env_steps", "updates")]
        if folder.name != _name(*place):
            raise ValueError(f"its steps and updates are {place}")
        with memory_explained():
            return restore(checkpoint)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # The checksums match, so it was edited or written by faulty code: anything may fail, in any way.
        raise CheckpointError(
            f"checkpoint {folder} does not hold the state of a run: {type(error).__name__}: {error}"
        ) from error


def load(folder: Path) -> Checkpoint:
    """Read a checkpoint and verify that checksums match and numbers are finite.

    Raises:
        CheckpointError: a file is missing, does not match its checksum, or has the wrong contents.
        MemoryError: the files, which are read whole, do not fit into the memory that is free.
    """
    try:
        size, most = sum((folder / name).stat().st_size for name in (_TENSORS, _VALUES)), memory.total_bytes("cpu")
        if memory.free_bytes("cpu") < size <= most:
            raise MemoryError(f"the checkpoint has {size:,} bytes")
        content = {name: files.read(folder / name, most) for name in (_TENSORS, _VALUES)}
        checksums = from_json(files.read(folder / _MANIFEST, files.MIB))
        for name, each in content.items():
            if hashlib.sha256(each).hexdigest() != checksums[name]:
                raise CheckpointError(f"checkpoint {folder} is damaged: {name} does not match its checksum")
        checkpoint = Checkpoint(
            tensors=parse_tensors(content[_TENSORS]),
            values=dict(from_json(content[_VALUES], allow_inf_nan=False)),
        )
        for name, tensor in checkpoint.tensors.items():
            if not tensor.isfinite().all():
                raise ValueError(f"{name} is not finite: the weights have diverged, or were changed")
    except (CheckpointError, MemoryError):  # running out of memory is not damage
        raise
    except Exception as error:  # on damaged bytes, the libraries raise many types of error
        raise CheckpointError(f"checkpoint {folder} cannot be read: {type(error).__name__}: {error}") from error
    return checkpoint


def steps(root: Path) -> list[Path]:
    """The finished checkpoints under `root`, oldest first."""
    return sorted(folder for folder in root.glob("step-*") if _NAME.fullmatch(folder.name))


def _content(checkpoint: Checkpoint) -> dict[str, bytes]:
    """The files of a checkpoint, by name."""
    # Cloned because safetensors refuses shared memory, and a target network may share the buffers of its heads.
    tensors = {n: t.detach().cpu().contiguous().clone() for n, t in checkpoint.tensors.items()}
    try:
        values = json.dumps(checkpoint.values, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"cannot write a checkpoint: {error}; state() of the algorithm, the partner and the source of goals must "
            "return JSON values, so finite plain numbers in place of numpy's"
        ) from error
    content = {_TENSORS: format_tensors(tensors), _VALUES: values}
    checksums = {name: hashlib.sha256(each).hexdigest() for name, each in content.items()}
    return {**content, _MANIFEST: json.dumps(checksums, indent=2).encode()}


def _drop_unfinished(root: Path) -> None:
    for unfinished in () if root.is_symlink() else root.glob(f"{_WRITING}*"):
        _drop(unfinished)


def _drop(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # a link or a file in its place
        folder.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
