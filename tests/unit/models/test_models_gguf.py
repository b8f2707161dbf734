"""`launch/convert_gguf.py`: the built-in model, written as llama.cpp writes it, comes back as it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoTokenizer

from sacglam.config.sections import ModelConfig
from sacglam.errors import ModelError
from sacglam.models.loading import BUILTIN, load_model, load_text

gguf = pytest.importorskip("gguf")
ROOT = Path(__file__).parents[3]
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


def convert(file: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "launch" / "convert_gguf.py", file, folder]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_the_weights_come_back(tmp_path: Path) -> None:
    file, folder = write_gguf(tmp_path / "tiny.gguf"), tmp_path / "tiny"
    done = convert(file, folder)
    assert done.returncode == 0, done.stderr
    loaded, expected = (load_model(ModelConfig(name=name), CPU) for name in (str(folder), "builtin"))
    for name, tensor in expected.model.state_dict().items():
        torch.testing.assert_close(loaded.model.state_dict()[name], tensor, rtol=0, atol=0)
    assert "Grasp red cat" in loaded.tokenizer.decode(loaded.tokenizer("Grasp red cat")["input_ids"])
    assert (loaded.tokenizer.eos_token_id, loaded.max_tokens) == (0, 1024)
    missing = convert(tmp_path / "none.gguf", tmp_path / "other")
    assert (missing.returncode, "there is no file" in missing.stderr) == (1, True)
    again = convert(file, folder)
    assert (again.returncode, "exists; name a new folder" in again.stderr) == (1, True)


@pytest.mark.parametrize("damage", ["cut off", "no header", "a missing tensor", "an unknown architecture"])
def test_a_file_that_cannot_be_converted(damage: str, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", without="blk.1.ffn_up.weight" if damage == "a missing tensor" else "")
    content = file.read_bytes()
    if damage == "cut off":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "no header":
        file.write_bytes(bytes(64))
    elif damage == "an unknown architecture":
        file.write_bytes(content.replace(b"llama", b"lamas"))
    assert convert(file, tmp_path / "tiny").returncode == 1
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]


def test_a_gguf_file_as_a_model_says_how_to_convert_it(tmp_path: Path) -> None:
    for name in ("none.gguf", str(write_gguf(tmp_path / "tiny.gguf")), str(tmp_path)):
        with pytest.raises(ModelError, match=r"python launch/convert_gguf\.py FILE FOLDER"):
            load_text(ModelConfig(name=name))
