"""Adapters on an engine's own disk, since vLLM loads them by path."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import load

from sacglam.errors import DivergenceError, EngineError
from sacglam.types import Adapter


def check_finite(adapter: Adapter) -> None:
    """Refuse weights that are not finite: they would leave NaN in the engine's cache, and spoil later adapters' scores.

    Raises:
        DivergenceError: a weight is not finite.
    """
    tensors = load(adapter.files[SAFETENSORS_WEIGHTS_NAME])
    # Of all values the smallest and largest: a NaN becomes both, and `isfinite` of every value takes six times as long.
    extremes = torch.stack([extreme for tensor in tensors.values() for extreme in tensor.aminmax()])
    not_finite = (~extremes.isfinite()).nonzero().flatten().tolist()
    if not_finite:
        raise DivergenceError(
            f"adapter version {adapter.version} holds values that are not finite, first in "
            f"{list(tensors)[not_finite[0] // 2]}: the policy has diverged; start a new run with smaller learning rates"
        )


@contextmanager
def unpacked(adapter: Adapter, name: str) -> Iterator[Path]:
    """The adapter's files in a temporary folder `name`, for as long as the context lasts.

    Raises:
        EngineError: the disk refuses.
    """
    # With our process id, by which a folder that outlives us is found (`sacglam.runtime.guardian`).
    with TemporaryDirectory(prefix=f"sacglam-adapter-{os.getpid()}-") as root:
        folder = Path(root) / name
        try:
            folder.mkdir()
            for file, content in adapter.files.items():
                (folder / file).write_bytes(content)
        except OSError as error:
            raise EngineError(
                f"adapter version {adapter.version} cannot be written to {folder}: {error.strerror}; free space there, "
                "or set TMPDIR to another disk"
            ) from error
        yield folder
