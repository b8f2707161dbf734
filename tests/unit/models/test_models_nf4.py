"""Base weights in 4 bits: what is quantised and how, and that the packed forward is as exact as over plain weights."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel

from sacglam.config.sections import ModelConfig
from sacglam.errors import ModelError
from sacglam.models.loading import BUILTIN, load_model
from sacglam.models.packed_lm import ACTOR
from tests.unit.models.reference import (
    BOTH,
    Reference,
    adapted,
    assert_same_scores_and_gradients,
    gradients,
    ragged,
    shake,
    tiny_model,
)

bitsandbytes = pytest.importorskip("bitsandbytes")
from bitsandbytes.functional import dequantize_4bit  # noqa: E402
from bitsandbytes.nn import Linear4bit  # noqa: E402

CPU = torch.device("cpu")
# Appendix E of the QLoRA paper: quantiles of the normal distribution, scaled to [-1, 1].
NF4 = torch.tensor(
    [
        *(-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0),
        *(0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0),
    ]
)
BLOCK = 64  # weights that share a scale
# Rows of one and of two blocks, which every CPU dequantises right.
WIDE = {
    "llama": {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16},
    "flan": {"d_model": 64, "d_kv": 16, "d_ff": 128},
}
Load = Callable[..., PreTrainedModel]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Loads the tiny model of a name from a folder, in 4 bits; its rows are of whole blocks but if it is `narrow`."""

    def from_folder(name: str, narrow: bool = False, **settings: Any) -> PreTrainedModel:
        folder = tmp_path_factory.mktemp(name)
        tiny_model(name, shape=None if narrow else WIDE[name]).save_pretrained(folder)
        AutoTokenizer.from_pretrained(BUILTIN).save_pretrained(folder)
        return load_model(ModelConfig(name=str(folder), quantize="nf4", **settings), CPU).model

    return from_folder


def four_bits(model: nn.Module) -> dict[str, Any]:
    """The quantised layers by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, Linear4bit)}


def plain(layer: Any) -> torch.Tensor:
    """The weights that a quantised layer multiplies with."""
    weight: torch.Tensor = dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    return weight


def dense(name: str, quantised: PreTrainedModel) -> PreTrainedModel:
    """The same function in plain weights."""
    model = tiny_model(name, shape=WIDE[name])
    for path, layer in four_bits(quantised).items():
        model.get_submodule(path).weight.data.copy_(plain(layer))
    return model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "left"), [("llama", {"lm_head"}), ("flan", {"lm_head", "wo"})])
def test_all_layers_but_the_output_layer_and_t5_s_wo(name: str, left: set[str], dtype: str, load: Load) -> None:
    model = load(name, dtype=dtype)
    others = {path for path, layer in model.named_modules() if type(layer) is nn.Linear}
    assert {path.rpartition(".")[2] for path in others} == left
    assert all(layer.weight.quant_state.nested for layer in four_bits(model).values())  # scales in 8 bits
    found = {parameter.dtype for parameter in model.parameters()}
    assert found == {torch.uint8, getattr(torch, dtype)}
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not model.training


@pytest.mark.parametrize("name", BOTH)
def test_each_weight_is_the_nearest_of_sixteen_values(name: str, load: Load) -> None:
    original = tiny_model(name, shape=WIDE[name])
    layers = four_bits(load(name))
    assert layers
    for path, layer in layers.items():
        assert_nearest(plain(layer), original.get_submodule(path).weight)


def assert_nearest(got: torch.Tensor, weight: torch.Tensor) -> None:
    """Each weight is the nearest of the sixteen values times the scale of its block."""
    blocks = weight.reshape(-1, BLOCK)
    scale = blocks.abs().amax(dim=1, keepdim=True)
    distance = (blocks[..., None] / scale[..., None] - NF4).abs().amin(dim=-1)
    # The scale itself is rounded to 8 bits; a weight between two values may go to either.
    assert ((got.reshape(-1, BLOCK) - blocks) / scale).abs().sub(distance).max() <= 0.03


@pytest.mark.parametrize(
    ("name", "kept"), [("llama", set()), ("flan", set()), ("builtin", {"down_proj"}), ("builtin-t5", set())]
)
def test_layers_whose_rows_are_no_whole_blocks_stay_as_they_are(name: str, kept: set[str], load: Load) -> None:
    own = name.startswith("builtin")
    with pytest.warns(UserWarning, match=r"nf4: \d+ of \d+ layers stay .* is not a multiple of 64"):
        model = load_model(ModelConfig(name=name, quantize="nf4"), CPU).model if own else load(name, narrow=True)
    original: nn.Module = load_model(ModelConfig(name=name), CPU).model if own else tiny_model(name)
    assert {path.rpartition(".")[2] for path in four_bits(model)} == kept
    assert not any(parameter.requires_grad for parameter in model.parameters())
    before = dict(original.named_parameters())
    for path, parameter in model.named_parameters():
        assert parameter.dtype == torch.uint8 or torch.equal(parameter, before[path])


@pytest.mark.parametrize(("name", "checkpointing"), [("llama", True), ("flan", False)])
def test_packed_equals_separate_and_gradients_reach_adapters_alone(name: str, checkpointing: bool, load: Load) -> None:
    base = load(name)
    reference_base, before = dense(name, base), weights(base)
    lm = adapted(name, base, checkpointing=checkpointing)
    lm.bucket = 16
    shake(lm, [ACTOR])
    assert_same_scores_and_gradients(lm, Reference(name, lm, base=reference_base), ragged())
    trained = {id(parameter) for parameter in lm.adapter_parameters(ACTOR).values()}
    assert {id(p) for p in lm.module.parameters() if p.grad is not None} == trained
    after = weights(base)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[path], after[path]) for path in before)


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """The packed bits of all quantised layers, by the layers' names in the base model."""
    return {path.replace(".base_layer", ""): layer.weight.data.clone() for path, layer in four_bits(model).items()}


@pytest.mark.parametrize("name", BOTH)
def test_adapters_are_float32_whatever_the_products_are_in(name: str, load: Load) -> None:
    lm = adapted(name, load(name, dtype="bfloat16"))
    shake(lm, [ACTOR])
    output = lm.forward(lm.pack(ragged()))
    assert output.log_probs_BA.dtype == torch.float32
    output.log_probs_BA.sum().backward()
    assert {p.dtype for p in lm.adapter_parameters(ACTOR).values()} == {torch.float32}
    assert all(g.abs().max() > 0 for g in gradients(lm).values())


def test_a_layer_takes_an_eighth_of_float32() -> None:
    # 4 bits a weight, 8 bits a block of 64, and for 256 blocks 32 bits: 0.51587 bytes against 4. To these come
    # tables of 16 and 256 numbers for each layer, which weigh in tiny ones alone.
    layer = Linear4bit(512, 512, bias=False, compute_dtype=torch.float32, quant_type="nf4", compress_statistics=True)
    layer.to("cpu")
    state = layer.weight.quant_state
    held = [layer.weight.data, state.absmax, state.state2.absmax]
    assert sum(t.numel() * t.element_size() for t in held) == 512 * 512 * (1 / 2 + 1 / 64 + 4 / (64 * 256))


def test_processors_with_bfloat16_compute_as_others_do(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: True)
    lm = adapted("llama", load("llama"))
    before = weights(lm.module)
    with torch.no_grad():
        acting = lm.forward(lm.pack(ragged())).log_probs_BA
    assert torch.equal(acting, lm.forward(lm.pack(ragged())).log_probs_BA)
    after = weights(lm.module)
    assert all(torch.equal(before[path], after[path]) for path in before)


def test_without_the_package_it_says_what_to_install(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(
        ModelError, match=r"needs bitsandbytes.*pip install 'sacglam\[nf4\]', or set model\.quantize to"
    ):
        load("llama")
