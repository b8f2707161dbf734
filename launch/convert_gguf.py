#!/usr/bin/env python3
"""Converts a GGUF file to a folder in float32 that `model.name` may name: python launch/convert_gguf.py FILE FOLDER.

It needs the extra `gguf`. The file must be whole, and of an architecture that transformers reads from GGUF.
"""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer

from sacglam.models.architectures import architecture_of
from sacglam.models.load_errors import read_whole


def convert(file: Path, folder: Path) -> None:
    """Write model and tokenizer; the folder appears whole or not at all."""
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
    writing = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(writing, ignore_errors=True)  # left by a process that was killed
    plain.save_pretrained(writing)
    tokenizer.save_pretrained(writing)
    writing.rename(folder)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    if not find_spec("gguf"):
        sys.exit("needs the package gguf; run pip install 'sacglam[gguf]'")
    if not Path(sys.argv[1]).is_file():
        sys.exit(f"there is no file {sys.argv[1]}")
    if Path(sys.argv[2]).exists():
        sys.exit(f"{sys.argv[2]} exists; name a new folder")
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
