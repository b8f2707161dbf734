"""Base weights in 4 bits: what is quantised and how, and that the packed forward is as exact as over plain weights."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel

from sacglam.config import ModelConfig
from sacglam.errors import ModelError
from sacglam.models.loading import BUILTIN, load_model
from sacglam.models.nf4 import plain_weights, scales, wrong_shapes
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
from bitsandbytes.functional import dequantize_4bit, quantize_4bit  # noqa: E402
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
WIDTHS = (32, 48, 96, 576, 768)
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


def quantised(width: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Random weights in 64 rows, the same in 4 bits, and how to read these."""
    weight = torch.randn(64, width, generator=torch.Generator().manual_seed(1)).to(dtype)
    packed, state = quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    return weight, packed, state


def restarting(packed: torch.Tensor, state: Any) -> torch.Tensor:
    """bitsandbytes 0.50.2 with AVX-512: row i begins at block i (width // 64), wherever its weights are."""
    rows, width = state.shape
    scale = scales(state)
    of_row = torch.arange(rows)[:, None] * (width // BLOCK) + torch.arange(width) // BLOCK
    right = scale.repeat_interleave(BLOCK)[: rows * width].view(rows, width)
    return (plain_weights(packed, state) / right * scale[of_row]).to(state.dtype)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_plain_reference_is_the_nearest_of_sixteen_values(width: int) -> None:
    weight, packed, state = quantised(width)
    assert_nearest(plain_weights(packed, state), weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shapes_that_are_dequantised_wrongly_are_found(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(64, width) for width in WIDTHS]
    monkeypatch.setattr("bitsandbytes.functional.dequantize_4bit", plain_weights)
    assert wrong_shapes(shapes, dtype, CPU) == set()
    monkeypatch.setattr("bitsandbytes.functional.dequantize_4bit", restarting)
    assert wrong_shapes(shapes, dtype, CPU) == {(64, 32), (64, 48), (64, 96)}
    assert wrong_shapes([(1, 96), (2, 96)], dtype, CPU) == {(2, 96)}  # one row has but one beginning


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_layer_that_passes_multiplies_by_its_weights_and_another_does_not(width: int, dtype: torch.dtype) -> None:
    weight, packed, state = quantised(width, dtype)
    layer = Linear4bit(width, 64, bias=False, compute_dtype=dtype, quant_type="nf4", compress_statistics=True)
    layer.weight.data = weight
    layer.to("cpu")
    layer.support_avx512bf16_for_cpu = False
    right = wrong_shapes([(64, width)], dtype, CPU) == set()
    found = {"multiplied by": layer(torch.eye(width, dtype=dtype)).T, "dequantised": dequantize_4bit(packed, state)}
    expected = plain_weights(packed, state) if right else restarting(packed, state)
    for name, got in found.items():
        torch.testing.assert_close(got, expected, rtol=2 * torch.finfo(dtype).eps, atol=0, msg=name)


@pytest.mark.parametrize(("name", "layers", "widths"), [("llama", 14, "32, 48"), ("flan", 42, "32")])
def test_layers_that_are_dequantised_wrongly_stay_as_they_are(
    name: str, layers: int, widths: str, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bitsandbytes.functional.dequantize_4bit", restarting)
    with pytest.warns(UserWarning, match=rf"nf4: {layers} of {layers} layers stay .* rows of {widths} weights wrongly"):
        model = load(name, narrow=True)
    assert four_bits(model) == {}
    original = dict(tiny_model(name).named_parameters())
    assert all(torch.equal(parameter, original[path]) for path, parameter in model.named_parameters())


@pytest.mark.parametrize(("name", "kept"), [("builtin", {"down_proj"}), ("builtin-t5", set())])
def test_the_built_in_models_keep_what_is_right_in_4_bits(
    name: str, kept: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ModelConfig(name=name, quantize="nf4")
    monkeypatch.setattr("bitsandbytes.functional.dequantize_4bit", restarting)
    with pytest.warns(UserWarning, match="rows of 96 weights wrongly on this CPU"):
        model = load_model(settings, CPU).model
    assert {path.rpartition(".")[2] for path in four_bits(model)} == kept
    assert not any(parameter.requires_grad for parameter in model.parameters())
    original = dict(load_model(ModelConfig(name=name), CPU).model.named_parameters())
    for path, parameter in model.named_parameters():
        assert parameter.dtype == torch.uint8 or torch.equal(parameter, original[path])
    monkeypatch.setattr("bitsandbytes.functional.dequantize_4bit", plain_weights)
    layers = four_bits(load_model(settings, CPU).model)
    assert len(layers) == {"builtin": 14, "builtin-t5": 32}[name]


@pytest.mark.parametrize(("name", "checkpointing"), [("llama", True), ("flan", False)])
def test_packed_equals_separate_and_gradients_reach_adapters_alone(name: str, checkpointing: bool, load: Load) -> None:
    base = load(name, gradient_checkpointing=checkpointing)
    reference_base, before = dense(name, base), weights(base)
    lm = adapted(name, base)
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
    with pytest.raises(ModelError, match=r"needs bitsandbytes.*pip install -e '\.\[nf4\]', or set model\.quantize to"):
        load("llama")
