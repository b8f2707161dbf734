"""Models in GGUF files: the built-in one, written as llama.cpp writes it, comes back as it was."""

from __future__ import annotations

import hashlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoTokenizer

from sacglam.config.sections import ModelConfig
from sacglam.errors import ModelError
from sacglam.models.gguf import converted
from sacglam.models.loading import BUILTIN, load_model, load_text

gguf = pytest.importorskip("gguf")
CPU = torch.device("cpu")
LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
HEADS = 3


def write_gguf(file: Path, without: str = "") -> Path:
    """The built-in model as GGUF in float32, except for the tensor `without`."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(2)
    writer.add_context_length(1024)
    writer.add_embedding_length(96)
    writer.add_feed_forward_length(256)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(32)
    tokenizer = AutoTokenizer.from_pretrained(BUILTIN)
    tokens = [tokenizer.convert_ids_to_tokens(i) or f"<unused {i}>" for i in range(512)]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(tokens) - 1))
    writer.add_token_merges(_merges(tokens))
    writer.add_eos_token_id(0)
    for name, tensor in load_file(BUILTIN / "model.safetensors").items():
        if (named := _named(name)) != without:
            writer.add_tensor(named, _rotated(tensor) if "attn_q" in named or "attn_k" in named else tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _merges(tokens: list[str]) -> list[str]:
    known = set(tokens)
    splits = ((t[:i], t[i:]) for t in tokens if not t.startswith("<|") for i in range(1, len(t)))
    return [f"{a} {b}" for a, b in splits if a in known and b in known]


def _named(name: str) -> str:
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in top:
        return top[name]
    _, _, layer, *rest, weight = name.split(".")
    return f"blk.{layer}.{LAYER['.'.join(rest)]}.{weight}"


def _rotated(weight: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """llama.cpp interleaves the two halves of each head that rotary positions pair."""
    rows, columns = weight.shape
    return np.ascontiguousarray(weight.reshape(HEADS, 2, rows // HEADS // 2, columns).swapaxes(1, 2)).reshape(
        rows, columns
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_the_weights_come_back_and_the_file_is_converted_once(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    loaded = load_model(ModelConfig(name=str(file)), CPU)
    expected = load_model(ModelConfig(name="builtin"), CPU)
    for name, tensor in expected.model.state_dict().items():
        torch.testing.assert_close(loaded.model.state_dict()[name], tensor, rtol=0, atol=0)
    assert "Grasp red cat" in loaded.tokenizer.decode(loaded.tokenizer("Grasp red cat")["input_ids"])
    assert (loaded.tokenizer.eos_token_id, loaded.max_tokens) == (0, 1024)
    assert capsys.readouterr().err.count("converting") == 1
    again = load_text(ModelConfig(name=str(tmp_path)))  # its folder, which holds no other
    assert again.source == loaded.source
    assert Path(again.source).is_relative_to(home)
    assert "converting" not in capsys.readouterr().err


def test_another_file_under_the_same_name_is_another_model(home: Path, tmp_path: Path) -> None:
    settings = ModelConfig(name=str(write_gguf(tmp_path / "tiny.gguf")))
    first = load_text(settings).source
    with Path(settings.name).open("ab") as file:
        file.write(bytes(32))
    assert load_text(settings).source != first


def test_two_at_once_and_the_rest_of_one_that_was_killed(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, cache = write_gguf(tmp_path / "tiny.gguf"), home / "sacglam" / "gguf"
    checksum = hashlib.sha256(file.read_bytes()).hexdigest()
    (cache / f"{checksum}.writing").mkdir(parents=True)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(converted, [file, file])) == [cache / checksum] * 2
    assert capsys.readouterr().err.count("converting") == 1
    assert not (cache / f"{checksum}.writing").exists()


@pytest.mark.parametrize("damage", ["cut off", "no header", "a missing tensor", "an unknown architecture"])
def test_a_file_that_cannot_be_converted(damage: str, home: Path, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", without="blk.1.ffn_up.weight" if damage == "a missing tensor" else "")
    content = file.read_bytes()
    if damage == "cut off":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "no header":
        file.write_bytes(bytes(64))
    elif damage == "an unknown architecture":
        file.write_bytes(content.replace(b"llama", b"lamas"))
    with pytest.raises(ModelError, match=r"tiny.gguf' cannot be converted .* expected a complete GGUF file"):
        load_text(ModelConfig(name=str(file)))
    assert not [path for path in (home / "sacglam" / "gguf").iterdir() if path.suffix != ".lock"]


def test_which_file_is_meant(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"No such file .*none\.gguf"):
        load_text(ModelConfig(name="none.gguf"))
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ModelError, match=r"several GGUF files; set model.name to one of them, e.g. .*a\.gguf"):
        load_text(ModelConfig(name=str(tmp_path)))
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUILTIN / name, tmp_path)
    assert load_text(ModelConfig(name=str(tmp_path))).source == str(tmp_path)  # safetensors first
