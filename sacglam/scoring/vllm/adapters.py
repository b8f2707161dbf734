"""Adapters as folders on an engine's own disk, since engines load them by path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory

import safetensors.torch
from safetensors import SafetensorError

from sacglam.errors import DivergenceError, EngineError
from sacglam.types import Adapter

WEIGHTS = "adapter_model.safetensors"
NEEDED = ("adapter_config.json", WEIGHTS)


class AdapterFolders:
    """Folders that hold an adapter while it is loaded and no longer, so that an engine that is killed leaves none."""

    def __init__(self) -> None:
        self._numbers = count(1)

    @contextmanager
    def unpacked(self, adapter: Adapter) -> Iterator[tuple[int, Path]]:
        """A number and a folder that no adapter had before, whatever its version; the folder goes with the context.

        Raises:
            EngineError: files of a peft adapter are missing, names leave the folder, or the disk refuses.
        """
        _check(adapter)
        number = next(self._numbers)
        with TemporaryDirectory(prefix="sacglam-adapter-") as root:
            folder = Path(root) / f"v{number}"
            try:
                folder.mkdir()
                for name, content in adapter.files.items():
                    (folder / name).write_bytes(content)
            except OSError as error:
                raise EngineError(
                    f"adapter version {adapter.version} cannot be written to {folder}: {error.strerror}; free space "
                    "there, or set TMPDIR to another disk"
                ) from error
            yield number, folder


def check_finite(adapter: Adapter) -> None:
    """Hold back what would poison an engine: its cache keeps what such an adapter left, and gives it to the next one.

    Raises:
        DivergenceError: a weight is not finite.
        EngineError: the files are no adapter.
    """
    _check(adapter)
    try:
        tensors = safetensors.torch.load(adapter.files[WEIGHTS])
    except SafetensorError as error:
        raise EngineError(
            f"expected adapter version {adapter.version} to hold tensors in {WEIGHTS}; it cannot be read: {error}"
        ) from error
    faulty = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if faulty:
        raise DivergenceError(
            f"adapter version {adapter.version} holds values that are not finite, first in {faulty[0]}: the policy has "
            "diverged; train anew with smaller learning rates"
        )


def _check(adapter: Adapter) -> None:
    missing = [name for name in NEEDED if name not in adapter.files]
    if missing:
        raise EngineError(
            f"expected adapter version {adapter.version} to have {' and '.join(NEEDED)}, as peft saves them; "
            f"got {sorted(adapter.files)}"
        )
    foreign = [name for name in adapter.files if name == ".." or PurePath(name).name != name]
    if foreign:
        raise EngineError(f"expected the adapter's files by plain names, got {foreign}")
