"""A model that cannot be loaded: the message names what is missing and where."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sacglam.config.sections import ModelConfig
from sacglam.errors import ModelError
from sacglam.models.load_errors import explained
from sacglam.models.loading import BUILTIN, load_model, load_shape
from tests.fuzz.common import within


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"in its config\.json\. Expected a folder with .*pickles are never read"):
        load_model(ModelConfig(name=str(tmp_path)), torch.device("cpu"))


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot be loaded: .*No such file.*Expected a folder with .*pickles"):
        load_shape(ModelConfig(name=str(tmp_path / "nothing")))


def test_a_name_that_no_file_can_have() -> None:
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_shape(ModelConfig(name="a\0b"))


def test_a_name_of_the_hub_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError) as caught:
        load_shape(ModelConfig(name="nobody/has-this"))
    said = str(caught.value)
    assert "HF_HUB_OFFLINE is set, so nothing was downloaded" in said
    assert "`hf download nobody/has-this`" in said
    assert str(tmp_path) in said
    assert "local folder" in said


def test_an_error_keeps_its_reason() -> None:
    said = r"'google/flan-t5-base' cannot be loaded: .*`hf download google/flan-t5-base`.* no route$"
    with pytest.raises(ModelError, match=said), explained("google/flan-t5-base"):
        raise OSError("no route")


def test_a_folder_that_is_not_there_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "camp-model").mkdir()
    with pytest.raises(ModelError) as raised, explained("camp-modle"):
        raise OSError("no route")
    assert str(raised.value).startswith(
        "model 'camp-modle' cannot be loaded: there is no folder camp-modle here (did you mean camp-model?); "
    )


def make_huge(file: Path) -> None:
    file.touch()
    os.truncate(file, 1 << 40)


DAMAGES: dict[str, dict[str, object]] = {
    "config.json": {
        "num_attention_heads": [0, "2", 2**31],
        "hidden_size": [-1, "x"],
        "num_hidden_layers": [10**9],
        "vocab_size": [3, None],
        "model_type": [["llama"], None],
        "max_position_embeddings": ["x"],
        "bos_token_id": [[[]]],
    },
    "tokenizer.json": {"model": [None, {}], "added_tokens": [[{"id": 2**31}]], "version": [None]},
    "tokenizer_config.json": {"tokenizer_class": [[]], "eos_token": [{}]},
}


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [(name, key, value) for name, keys in DAMAGES.items() for key, values in keys.items() for value in values],  # type: ignore[attr-defined]
)
def test_a_damaged_value_is_refused_or_does_no_harm(name: str, key: str, value: object, tmp_path: Path) -> None:
    folder = shutil.copytree(BUILTIN, tmp_path / "model")
    found = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**found, key: value}))
    with within(20), suppress(ModelError):
        load_model(ModelConfig(name=str(folder)), torch.device("cpu"))


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("config.json", os.mkfifo),
        ("tokenizer.json", make_huge),
        ("tokenizer_config.json", lambda file: file.symlink_to("/dev/zero")),
        ("model.safetensors", os.mkfifo),
        ("model.safetensors", Path.mkdir),
        ("model.safetensors", lambda file: file.symlink_to("/dev/zero")),
        ("model.safetensors", make_huge),
    ],
)
def test_what_is_no_file_is_refused_at_once(name: str, planted: Callable[[Path], None], tmp_path: Path) -> None:
    folder = shutil.copytree(BUILTIN, tmp_path / "model")
    (folder / name).unlink()
    planted(folder / name)
    with within(20), pytest.raises(ModelError, match=r"cannot be loaded"):
        load_model(ModelConfig(name=str(folder)), torch.device("cpu"))


@pytest.mark.parametrize("part", ["../part.safetensors", "parts/part.safetensors"])
def test_an_index_names_files_next_to_it(part: str, tmp_path: Path) -> None:
    folder = shutil.copytree(BUILTIN, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": {"a": part}}))
    with pytest.raises(ModelError, match=f"names {part}; expected files next to it"):
        load_model(ModelConfig(name=str(folder)), torch.device("cpu"))


def test_weights_that_are_missing_are_not_made_up(tmp_path: Path) -> None:
    folder = shutil.copytree(BUILTIN, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("q_proj.weight"))
    save_file(
        {other: tensor for other, tensor in tensors.items() if other != name},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(ModelError, match=f"it lacks 1 tensors, e.g. {name}"):
        load_model(ModelConfig(name=str(folder)), torch.device("cpu"))
