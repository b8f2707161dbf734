"""Why a model cannot be loaded: which of its files are missing, where they were looked for, and what to do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import constants

from sacglam.errors import ModelError

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def load_error(name: str, reason: object) -> ModelError:
    """The error for a model by this name, when the loader gives `reason`."""
    if Path(name).is_dir():
        said = _of_folder(Path(name))
    elif _is_path(name):
        said = f"there is no folder {name}; expected one with config.json, *.safetensors and tokenizer files"
    else:
        said = _of_hub(name)
    return ModelError(f"model {name!r} cannot be loaded: {said}. The loader says: {reason}")


def _is_path(name: str) -> bool:
    """A name of the hub has one slash at most."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1


def _of_folder(folder: Path) -> str:
    missing = missing_files(folder)
    if missing:
        return f"{folder} lacks {'; '.join(missing)}. Put them there, as save_pretrained or `hf download` writes them"
    return f"{folder} has its files, but one of them is damaged or of a kind that transformers does not know"


def _of_hub(name: str) -> str:
    cache = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    missing = missing_files(_snapshot(cache))
    if not missing:
        return f"{cache} has its files, but one of them is damaged or of a kind that transformers does not know"
    offline = constants.HF_HUB_OFFLINE
    how = "HF_HUB_OFFLINE is set, so the hub was not asked" if offline else "the hub did not give them"
    return (
        f"{cache} lacks {'; '.join(missing)}, and {how}. Run `hf download {name}` where there is a network"
        f"{' and HF_HUB_OFFLINE is not set' if offline else ''} (HF_HOME names another cache), or set model.name to a "
        "local folder that holds them, or to 'builtin' or 'builtin-t5'; check the name's spelling, too"
    )


def _snapshot(cache: Path) -> Path:
    """The folder of the newest version that was downloaded, which need not exist."""
    try:
        return cache / "snapshots" / (cache / "refs" / "main").read_text().strip()
    except OSError:
        return cache / "snapshots" / "main"


def missing_files(folder: Path) -> list[str]:
    """What a model's folder lacks, in words; empty if it is whole."""
    found = [] if (folder / "config.json").is_file() else ["config.json"]
    if not _any(folder, _TOKENIZERS):
        found.append(f"tokenizer files ({' or '.join(_TOKENIZERS)})")
    return found + _missing_weights(folder)


def _missing_weights(folder: Path) -> list[str]:
    if _any(folder, _WEIGHTS):
        return []
    for name in _WEIGHTS:
        index = folder / f"{name}.index.json"
        if index.is_file():
            try:
                parts = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            except (ValueError, KeyError, TypeError):  # cut short, or no index at all
                return [f"a readable {index.name}"]
            return [f"weights ({part})" for part in parts if not (folder / part).is_file()]
    return ["weights (model.safetensors, or model.safetensors.index.json and its parts)"]


def _any(folder: Path, names: Sequence[str]) -> bool:
    return any((folder / name).is_file() for name in names)
