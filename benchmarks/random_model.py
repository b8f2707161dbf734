"""Writes a model of known shape and random weights to a folder, for `model.name`: to try what cannot be downloaded.

python -m benchmarks.random_model t5-base DIR

The tokenizer is that of the built-in model of the same kind. It knows Playground-Text's words, so prompts have fewer
tokens than with the real model's.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch

from benchmarks import common
from sacglam.models.architectures import architecture_of
from sacglam.models.loading import BUILTIN, BUILTIN_T5

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def write(shape: str, folder: Path) -> int:
    """Write config.json, model.safetensors (float32, from seed 0) and tokenizer files; the number of parameters."""
    folder.mkdir(parents=True)
    config = common.shape_config(shape)
    torch.manual_seed(0)
    model = architecture_of(config).auto.from_config(config)
    if config.is_encoder_decoder:  # Flan-T5 has an output layer of its own
        model.lm_head.weight = torch.nn.Parameter(0.05 * torch.randn_like(model.lm_head.weight))
    model.save_pretrained(folder)
    for name in TOKENIZER_FILES:
        shutil.copy((BUILTIN_T5 if config.is_encoder_decoder else BUILTIN) / name, folder)
    return model.num_parameters()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=[*common.SHAPES, *common.T5_SHAPES])
    parser.add_argument("folder", type=Path, help="must not exist yet")
    options = parser.parse_args()
    parameters = write(options.shape, options.folder)
    print(f"{parameters:,} random parameters are in {options.folder}")


if __name__ == "__main__":
    main()
