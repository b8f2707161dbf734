"""Models in GGUF files, converted once to a folder that learner, engines and peft read like any other."""

import hashlib
import shutil
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants
from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import logging

from sacglam import files
from sacglam.errors import ModelError
from sacglam.models.architectures import architecture_of
from sacglam.models.load_errors import read_whole


def gguf_file(name: str) -> Path | None:
    """The GGUF file that a model's name stands for: itself, or the only one in a folder without safetensors.

    Raises:
        ModelError: the folder has several.
    """
    path = Path(name)
    if path.suffix == ".gguf":
        return path if path.is_file() else None
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        raise ModelError(f"model {name!r} has several GGUF files; set model.name to one of them, e.g. {found[0]}")
    return found[0] if found else None


def converted(file: Path) -> Path:
    """The model and tokenizer of a GGUF file as a folder, in float32, under `HF_HOME`, named by the file's checksum.

    Raises:
        ModelError: the file is damaged or of an unsupported kind, or the package that reads it is missing.
    """
    stat = file.stat()
    folder = Path(constants.HF_HOME) / "sacglam" / "gguf" / _checksum(file.resolve(), stat.st_mtime_ns, stat.st_size)
    if folder.is_dir():
        return folder
    if not find_spec("gguf"):
        raise ModelError(f"model {str(file)!r} needs the package gguf; run pip install 'sacglam[gguf]'")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(folder.with_suffix(".lock")):  # other processes wait, and then find the folder
            if not folder.is_dir():
                _convert(file, folder)
    except Exception as error:  # gguf and transformers raise many types
        raise ModelError(
            f"model {str(file)!r} cannot be converted to {folder}: {error or type(error).__name__}; expected a "
            "complete GGUF file, not split into parts, of an architecture and tokenizer that transformers reads "
            "(and room for its weights in float32 under HF_HOME)"
        ) from error
    return folder


@cache
def _checksum(file: Path, modified_ns: int, size: int) -> str:
    """The file's SHA-256; computed again if the file changes."""
    with files.opened(file) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()  # type: ignore[arg-type]  # an IO has no readinto


def _convert(file: Path, folder: Path) -> None:
    print(f"converting {file} to {folder}, once", file=sys.stderr)
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    source: dict[str, Any] = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    config = AutoConfig.from_pretrained(**source)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    auto = architecture_of(config).auto
    model = read_whole(auto.from_pretrained, **source, dtype=torch.float32)
    # With the quantiser attached a model refuses to be saved, so a fresh one takes its weights.
    del model.config.quantization_config
    with torch.device("meta"):
        plain = auto.from_config(model.config)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    writing = folder.with_suffix(".writing")
    shutil.rmtree(writing, ignore_errors=True)  # left by a process that was killed
    plain.save_pretrained(writing)
    tokenizer.save_pretrained(writing)
    writing.rename(folder)
