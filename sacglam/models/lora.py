"""LoRA layers around a frozen model's linear ones, and the bytes of an adapter's files."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import Linear
from peft.utils import CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import save
from torch import Tensor, nn
from transformers import PreTrainedModel
from typing_extensions import override

from sacglam.errors import ModelError

_copies: list[dict[int, Tensor]] = []  # no ContextVar: on a GPU, autograd recomputes checkpoints in its own thread


@contextmanager
def convert_once() -> Iterator[None]:
    """Convert each A and B once for all forward passes of the `with` block, in which no weight may change.

    On a GPU each conversion is a kernel: 336 in every pass through Qwen2.5-0.5B.
    """
    _copies.append({})
    try:
        yield
    finally:
        _copies.pop()


def _in_type(weight: Tensor, dtype: torch.dtype) -> Tensor:
    if not _copies or weight.dtype == dtype:
        return weight.to(dtype)
    copies = _copies[-1]
    if id(weight) not in copies:
        with torch.enable_grad():  # the first pass to need it may be one without gradient
            copies[id(weight)] = weight.to(dtype)
    return copies[id(weight)]


class _Down(nn.Linear):
    """A x in the type of x, whatever the type of A."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, _in_type(self.weight, x.dtype))


class _Up(nn.Linear):
    """y + s B h, in place, by one kernel that reads and writes y once; without `y`, only B h."""

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
        # Separate modules, which are themselves called: see `Backend`.
        self.lora_A[adapter_name].__class__ = _Down
        self.lora_B[adapter_name].__class__ = _Up

    @override
    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if x.dtype == torch.float32:
            return super().forward(x, *args, **kwargs)
        [adapter] = self.active_adapters
        x_XI = x.flatten(0, -2)
        y_XO: Tensor = self.base_layer(x_XI)
        y_XO = self.lora_B[adapter](self.lora_A[adapter](x_XI), y_XO, self.scaling[adapter])
        return y_XO.view(*x.shape[:-1], -1)


class MergedLinear(Linear):  # type: ignore[misc]
    """y = (W + s B A) x, the same function in float32: faster where x is hardly wider than the adapter's rank.

    Never for a large model, since every pass computes the sum again.
    """

    @override
    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        [adapter] = self.active_adapters
        down, up, base = self.lora_A[adapter].weight, self.lora_B[adapter].weight, self.base_layer
        return F.linear(x, torch.addmm(base.weight, up, down, alpha=self.scaling[adapter]), base.bias)


def add_adapters(model: PreTrainedModel, lora: LoraConfig, names: Sequence[str], merged: bool = False) -> PeftModel:
    """Insert LoRA layers into `model`, in place: one trainable adapter for each of `names`, all equal at first.

    Raises:
        ModelError: no layer fits `lora.target_modules`.
    """
    lora._register_custom_module({nn.Linear: MergedLinear if merged else LoraLinear})
    try:
        peft_model = get_peft_model(model, lora, adapter_name=names[0])
    except ValueError as error:
        raise ModelError(f"none of the model's layers can have an adapter: {error}") from error
    assert isinstance(peft_model, PeftModel)
    for name in names[1:]:
        peft_model.add_adapter(name, lora)
    first = adapter_parameters(peft_model, names[0])
    for name in names[1:]:
        for key, parameter in adapter_parameters(peft_model, name).items():
            parameter.data.copy_(first[key])
            parameter.requires_grad_(True)  # peft froze it
    return peft_model


def adapter_parameters(peft_model: PeftModel, adapter: str) -> dict[str, nn.Parameter]:
    """The weights of one adapter by their names in a saved peft adapter, without the adapter's name."""
    marker = f".{adapter}."
    return {n.replace(marker, "."): p for n, p in peft_model.named_parameters() if "lora_" in n and marker in n}


def adapter_bytes(config: LoraConfig, weights: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, bytes]:
    """An adapter as the files of a peft folder, by name, as peft and vLLM load it, with weights of type `dtype`."""
    values = {**config.to_dict(), "inference_mode": True}
    plain = {name: sorted(value) if isinstance(value, set) else value for name, value in values.items()}
    # Moved in one piece, since every transfer waits for the GPU.
    flat = torch.cat([weight.detach().flatten() for weight in weights.values()])
    parts = torch.split(flat.to("cpu", dtype), [weight.numel() for weight in weights.values()])
    tensors = {name: part.view(w.shape) for (name, w), part in zip(weights.items(), parts, strict=True)}
    return {
        CONFIG_NAME: json.dumps(plain, indent=2, sort_keys=True).encode(),
        SAFETENSORS_WEIGHTS_NAME: save(tensors, metadata={"format": "pt"}),
    }
