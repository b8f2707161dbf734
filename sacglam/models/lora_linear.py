"""LoRA around a linear layer, with its products in the base model's type."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from peft.tuners.lora import Linear
from torch import Tensor, nn
from typing_extensions import override

_copies: ContextVar[dict[int, Tensor] | None] = ContextVar("copies", default=None)


@contextmanager
def convert_once() -> Iterator[None]:
    """Convert each A and B once for all forward passes of the `with` block, in which no weight may change.

    On a GPU each conversion is a kernel: 336 in every pass through Qwen2.5-0.5B.
    """
    token = _copies.set({})
    try:
        yield
    finally:
        _copies.reset(token)


class _Converted(torch.autograd.Function):
    """A copy of a weight in another type, through which the weight gets its gradient."""

    @staticmethod
    @override
    def forward(ctx: Any, weight: Tensor, copy: Tensor) -> Tensor:
        ctx.dtype = weight.dtype
        return copy.view_as(copy)

    @staticmethod
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.to(ctx.dtype), None


def _in_type(weight: Tensor, dtype: torch.dtype) -> Tensor:
    if torch.compiler.is_compiling():  # compiled layers convert inside their own kernels
        return weight.to(dtype)
    copies = _copies.get()
    if copies is None or weight.dtype == dtype:
        return weight.to(dtype)
    if id(weight) not in copies:  # the same parameter at any stage of ZeRO, whose layer has gathered it
        copies[id(weight)] = weight.detach().to(dtype)
    copy = copies[id(weight)]
    return _Converted.apply(weight, copy) if torch.is_grad_enabled() else copy  # type: ignore[no-untyped-call]


class _Down(nn.Linear):
    """A x in the type of x, whatever A's."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, _in_type(self.weight, x.dtype))


class _Up(nn.Linear):
    """y + s B h, into `y`'s own memory where `y` is given: then one kernel, which reads y once and writes it once."""

    @override
    def forward(self, h_XR: Tensor, y: Tensor | None = None, scale: float = 1.0) -> Tensor:
        weight = _in_type(self.weight, h_XR.dtype)
        return F.linear(h_XR, weight) if y is None else y.addmm_(h_XR, weight.T, alpha=scale)


class LoraLinear(Linear):  # type: ignore[misc]  # peft has no types
    """y = W x + s B (A x), its products in the type of x; A and B stay float32, as do their gradients and moments.

    peft multiplies in the type of A and B. On a GPU these float32 products and the conversions around them would take
    as long as the base model. In float32 this is peft's own forward, to the last bit. The parameters and their names
    are peft's.
    """

    @override
    def update_layer(self, adapter_name: str, *args: Any, **kwargs: Any) -> None:
        super().update_layer(adapter_name, *args, **kwargs)
        # Modules of their own, since ZeRO-3 gathers a sharded weight when the module that owns it is called.
        self.lora_A[adapter_name].__class__ = _Down
        self.lora_B[adapter_name].__class__ = _Up

    @override
    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if x.dtype == torch.float32 or self.disable_adapters:
            y: Tensor = super().forward(x, *args, **kwargs)
            return y
        [adapter] = self.active_adapters
        x_XI = x.flatten(0, -2)
        y_XO: Tensor = self.base_layer(x_XI)
        y_XO = self.lora_B[adapter](self.lora_A[adapter](x_XI), y_XO, self.scaling[adapter])
        return y_XO.view(*x.shape[:-1], -1)
