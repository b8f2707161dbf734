"""Why a model cannot be loaded: which files are missing, where they were expected, and what to do."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import constants
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, cached_file

from sacglam import files
from sacglam.errors import ModelError, SacglamError, memory_explained

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
_READ = (".json", ".safetensors", ".model", ".txt", ".jinja")
_LARGEST_TEXT, _LONGEST_ID = 256 * files.MIB, 8
_WEIGHTS, _INDEX, _PICKLE = "model.safetensors", SAFE_WEIGHTS_INDEX_NAME, "pytorch_model.bin"


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn any error of a library about the files of the model `name` into a `ModelError`: damage causes many types."""
    try:
        with memory_explained():
            yield
    except SacglamError:
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise ModelError(f"model {name!r} cannot be loaded: {_fault(name)}. The loader says: {reason}") from error


def read_whole(read: Callable[..., Any], **options: Any) -> Any:
    """A model as transformers' `from_pretrained` reads it.

    Raises:
        ValueError: weights are missing, which transformers would fill with random numbers.
    """
    model, report = read(**options, output_loading_info=True)
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"it lacks {len(missing)} tensors, e.g. {missing[0]}")
    return model


def check_folder(folder: Path) -> None:
    """Refuse a local folder with a file that would block its reader forever.

    Raises:
        OSError: it is a named pipe, a device, or too large.
        ValueError: a tokenizer has an id so large that listing all ids up to it takes minutes.
    """
    for file in folder.iterdir():
        if file.suffix in _READ and file.exists():
            files.check(file, None if file.suffix == ".safetensors" else _LARGEST_TEXT)
    if (folder / _TOKENIZERS[0]).is_file():
        json.loads(files.read(folder / _TOKENIZERS[0], _LARGEST_TEXT), parse_int=_token_id)


def check_parts(source: str) -> None:
    """Refuse an index of weights that names other files, which transformers would unpickle, or files elsewhere.

    Raises:
        ValueError: it does, or it is not an index.
    """
    index = cached_file(
        source, _INDEX, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
    )
    try:
        parts = [str(part) for part in json.loads(Path(index).read_bytes())["weight_map"].values()] if index else []
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{index} is not an index of weights") from error
    for part in parts:
        if not part.endswith(".safetensors"):
            raise ValueError(f"{index} names {part}; only *.safetensors are read, never pickles")
        if Path(part).name != part:  # not among the files that were checked
            raise ValueError(f"{index} names {part}; expected files next to it")


def _token_id(digits: str) -> int:
    if len(digits) > _LONGEST_ID:
        raise ValueError(f"expected token ids of at most {_LONGEST_ID} digits in {_TOKENIZERS[0]}, got {digits[:20]}")
    return int(digits)


def _fault(name: str) -> str:
    place = folder = Path(name)
    remedy = "Add them, as save_pretrained or `hf download` writes them"
    if not folder.is_dir():
        if name.startswith(("/", ".", "~")) or name.endswith(".gguf") or name.count("/") > 1:  # on the hub: one at most
            kind = "file" if name.endswith(".gguf") else "folder"
            return (
                f"there is no {kind} {name}; expected one with config.json, *.safetensors and tokenizer files, or a "
                "GGUF file"
            )
        offline = constants.HF_HUB_OFFLINE
        place = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
        folder = _snapshot(place)
        remedy = (
            f"{'HF_HUB_OFFLINE is set, so nothing was downloaded' if offline else 'The hub did not provide them'}. Run "
            f"`hf download {name}` with a network{' and without HF_HUB_OFFLINE' if offline else ''} (HF_HOME names "
            "another cache), or set model.name to a local folder that holds them, 'builtin' or 'builtin-t5'; also "
            "check the spelling"
        )
    if missing := missing_files(folder):
        return f"{place} lacks {'; '.join(missing)}. {remedy}"
    return f"{place} is complete, but a file is damaged or of a kind that transformers does not know"


def _snapshot(cache: Path) -> Path:
    """The folder of the newest downloaded version, which may not exist."""
    try:
        return cache / "snapshots" / (cache / "refs" / "main").read_text().strip()
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return cache / "snapshots" / "main"


def missing_files(folder: Path) -> list[str]:
    """What a model's folder lacks, in words; empty if it is complete."""

    def lacks(*names: str) -> bool:
        return not any((folder / name).is_file() for name in names)

    missing = ["config.json"] if lacks("config.json") else []
    if lacks(*_TOKENIZERS):
        missing.append(f"tokenizer files ({' or '.join(_TOKENIZERS)})")
    if not lacks(_WEIGHTS):
        return missing
    if not lacks(_INDEX):
        try:
            parts = sorted(set(json.loads((folder / _INDEX).read_text("utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError):  # cut short, or not an index
            return [*missing, f"a readable {_INDEX}"]
        return missing + [f"weights ({part})" for part in parts if lacks(part)]
    if not lacks(_PICKLE, f"{_PICKLE}.index.json"):
        pickle = f"{_PICKLE} is a pickle, which can run code when it is read, and never is"
        return [*missing, f"weights as {_WEIGHTS} ({pickle})"]
    return [*missing, f"weights ({_WEIGHTS}, or {_INDEX} and its parts)"]
