"""Adapters on an engine's own disk, since vLLM loads them by path."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory

import torch
from peft.utils import CONFIG_NAME as SETTINGS_FILE
from peft.utils import SAFETENSORS_WEIGHTS_NAME as WEIGHTS_FILE
from safetensors import SafetensorError
from safetensors.torch import load

from sacglam.errors import DivergenceError, EngineError
from sacglam.types import Adapter

_REQUIRED = (SETTINGS_FILE, WEIGHTS_FILE)


def check(adapter: Adapter) -> None:
    """Refuse an adapter that cannot be loaded, or whose weights are not finite.

    Non-finite weights would leave NaN in the engine's cache, which spoils the scores of later adapters.

    Raises:
        DivergenceError: a weight is not finite.
        EngineError: files of a peft adapter are missing, names leave the folder, or the tensors cannot be read.
    """
    if not adapter.files.keys() >= set(_REQUIRED):
        raise EngineError(
            f"expected adapter version {adapter.version} to have {' and '.join(_REQUIRED)}, as peft saves them; "
            f"got {sorted(adapter.files)}"
        )
    paths = [name for name in adapter.files if name == ".." or PurePath(name).name != name]
    if paths:
        raise EngineError(f"expected the adapter's files by plain names, got {paths}")
    try:
        tensors = load(adapter.files[WEIGHTS_FILE])
    except SafetensorError as error:
        raise EngineError(
            f"expected adapter version {adapter.version} to hold tensors in {WEIGHTS_FILE}, but it cannot be read: "
            f"{error}"
        ) from error
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
