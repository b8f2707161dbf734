"""Our LoRA layer against peft's: the same in float32, the same but for rounding in bfloat16."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sacglam.models.lora import add_adapters, convert_once

Layers = tuple[nn.Module, nn.Module]
EPS = torch.finfo(torch.bfloat16).eps


class _Model(nn.Module):
    """A linear layer as a model that peft takes."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.q_proj = nn.Linear(48, 32, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.q_proj(x)
        return y


def layers(dtype: torch.dtype, bias: bool = True) -> Layers:
    """A layer as sacglam adapts it and as peft does, with equal weights and adapters."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for adapt in (lambda model, config: add_adapters(model, config, ["default"]), get_peft_model):
        torch.manual_seed(0)
        config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"])
        found.append(adapt(_Model(bias).to(dtype).requires_grad_(False), config).base_model.model.q_proj)
    ours, theirs = found
    with torch.no_grad():
        for own, other in zip(_adapter(ours), _adapter(theirs), strict=True):
            own.copy_(0.3 * torch.randn(own.shape, generator=generator))
            other.copy_(own)
    return ours, theirs


def _adapter(layer: nn.Module) -> list[Tensor]:
    """A and B."""
    return [parameter for name, parameter in layer.named_parameters() if "lora_" in name]


def outcome(layer: nn.Module, dtype: torch.dtype, weights: torch.dtype | None = None) -> list[Tensor]:
    """y, and the gradients of x, A and B, in float64; with `weights` computed in that type."""
    generator = torch.Generator().manual_seed(1)
    x, grad = (torch.randn(3, 50, width, generator=generator).to(dtype) for width in (48, 32))
    if weights:
        layer, x, grad = layer.to(weights), x.to(weights), grad.to(weights)
    x.requires_grad_()
    y = layer(x)
    assert y.dtype == x.dtype
    assert y.shape == (3, 50, 32)
    (y * grad).sum().backward()
    return [y.detach().double(), *(t.grad.double() for t in (x, *_adapter(layer)) if t.grad is not None)]


@pytest.mark.parametrize("bias", [False, True])
def test_in_float32_it_is_pefts_to_the_last_bit(bias: bool) -> None:
    ours, theirs = layers(torch.float32, bias)
    assert type(ours) is not type(theirs)
    for own, other in zip(outcome(ours, torch.float32), outcome(theirs, torch.float32), strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("bias", [False, True])
def test_in_bfloat16_it_is_as_exact_as_the_type(bias: bool) -> None:
    ours, theirs = layers(torch.bfloat16, bias)
    assert {p.dtype for p in _adapter(ours)} == {torch.float32}
    own, other = outcome(ours, torch.bfloat16), outcome(theirs, torch.bfloat16)
    exact = outcome(layers(torch.bfloat16, bias)[1], torch.bfloat16, weights=torch.float64)
    assert len(own) == len(other) == len(exact) == 4
    for a, b, true in zip(own, other, exact, strict=True):
        # Every factor and every sum is rounded once, by half a unit in the last place at most.
        assert (a - true).norm() < EPS * true.norm()
        assert (a - b).norm() < EPS * true.norm()


class _Conversions(TorchDispatchMode):
    """Counts the tensors that are converted from float32 to bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and args[0].dtype == torch.float32:
            self.count += found.dtype == torch.bfloat16
        return found


def test_in_an_update_a_and_b_are_converted_once_with_the_same_gradients() -> None:
    x = torch.randn(3, 50, 48, generator=torch.Generator().manual_seed(1)).bfloat16()

    def two_passes_and_one_without_gradient(once: bool) -> tuple[list[Tensor], int]:
        layer, _ = layers(torch.bfloat16)
        with _Conversions() as conversions, convert_once() if once else nullcontext():
            with torch.no_grad():
                target = layer(x)
            for part in (x, x.flip(0)):
                ((layer(part) - target).float().square()).sum().backward()
        return [t.grad for t in _adapter(layer) if t.grad is not None], conversions.count

    expected, each_pass = two_passes_and_one_without_gradient(once=False)
    found, once = two_passes_and_one_without_gradient(once=True)
    assert each_pass - once == 4, "six conversions become two"
    assert len(found) == 2
    for own, other in zip(found, expected, strict=True):
        assert own.dtype == torch.float32
        assert torch.equal(own, other)


def test_the_next_update_converts_the_weights_that_the_last_one_has_left() -> None:
    layer, _ = layers(torch.bfloat16)
    x = torch.randn(2, 48).bfloat16()
    with convert_once():
        before = layer(x)
    with torch.no_grad():
        _adapter(layer)[1].mul_(2)
    with convert_once():
        assert not torch.equal(layer(x), before)
