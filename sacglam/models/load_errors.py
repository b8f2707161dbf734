"""What stops a model from being loaded: libraries' errors, explained with a remedy, and files that may do harm."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from huggingface_hub import constants
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, cached_file

from sacglam import files
from sacglam.errors import ModelError, SacglamError, memory_explained

_TOKENIZER = "tokenizer.json"
_READ = (".json", ".safetensors", ".model", ".txt", ".jinja")
_LARGEST_TEXT, _LONGEST_ID = 256 * files.MIB, 8


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn any library's error about the files of the model `name` into a `ModelError`: damage causes many types."""
    try:
        with memory_explained():
            yield
    except SacglamError:
        raise
    except Exception as error:
        reason = (str(error) or type(error).__name__).rstrip(". ")
        said = (reason, _advice(name)) if looks_local(name) else (_advice(name), reason)
        raise ModelError(f"model {name!r} cannot be loaded: {'. '.join(said)}") from error


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
    if (folder / _TOKENIZER).is_file():
        json.loads(files.read(folder / _TOKENIZER, _LARGEST_TEXT), parse_int=_token_id)


def check_parts(source: str) -> None:
    """Refuse (`ValueError`) an index of weights that is damaged, or names pickles, which transformers would load, or
    files in other folders.
    """
    index = cached_file(
        source,
        SAFE_WEIGHTS_INDEX_NAME,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
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
        raise ValueError(f"expected token ids of at most {_LONGEST_ID} digits in {_TOKENIZER}, got {digits[:20]}")
    return int(digits)


def looks_local(name: str) -> bool:
    """Whether a model's name must be a file or folder: the Hub's have at most one `/`, inside."""
    return Path(name).is_dir() or name.startswith(("/", ".", "~")) or name.count("/") > 1


def _advice(name: str) -> str:
    files = "config.json, *.safetensors (pickles are never read) and tokenizer files, as save_pretrained writes them"
    if name.endswith(".gguf") or [*Path(name).glob("*.gguf")]:
        return "A GGUF file must be converted: in sacglam's repository, python launch/convert_gguf.py FILE FOLDER"
    if looks_local(name):
        return f"Expected a folder with {files}, complete and of an architecture that transformers supports"
    offline = constants.HF_HUB_OFFLINE
    near = get_close_matches(name, [folder.name for folder in Path().iterdir() if folder.is_dir()], n=1)
    return (
        f"there is no folder {name} here{f' (did you mean {near[0]}?)' if near else ''}; "
        f"`sacglam pretrain {name} --env NAME` makes one. For a model on the Hub: "
        f"{'HF_HUB_OFFLINE is set, so nothing was downloaded. ' if offline else ''}Run `hf download {name}` with a "
        f"network{' and without HF_HUB_OFFLINE' if offline else ''} (HF_HOME names another cache than "
        f"{constants.HF_HUB_CACHE}), or set model.name to 'builtin', 'builtin-t5' or a local folder with {files}; also "
        "check the spelling"
    )
