"""Base weights in 4 bits: NF4 with double quantisation (QLoRA, Dettmers et al. 2023).

The only file that knows bitsandbytes.
"""

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from sacglam.errors import ModelError

_BLOCK = 64  # weights that share a scale


def read_in_4_bits(read: Callable[..., Any], dtype: torch.dtype, device: torch.device) -> Any:
    """Quantise each layer as it is read; products are in `dtype`. `read` passes its arguments to `from_pretrained`.

    Not quantised: the output layer, embeddings, T5's `wo` (its activations are too large for 4 bits) and, with a
    warning, layers whose row length is not a multiple of the block size: on CPUs with AVX-512, bitsandbytes 0.50.2
    starts a new block at each row, and dequantises them wrongly.

    Raises:
        ModelError: bitsandbytes is missing.
    """
    model = read(**_arguments(dtype, device))
    layers = _layers(model)
    narrow = [name for name, layer in layers.items() if layer.in_features % _BLOCK]
    if narrow:
        plain, count = [name for name, layer in model.named_modules() if type(layer) is nn.Linear], len(layers)
        warnings.warn(
            f"model.quantize nf4: {len(narrow)} of {count} layers stay in full precision, because the "
            f"length of their rows is not a multiple of {_BLOCK}",
            stacklevel=3,
        )
        del model, layers  # so that memory never holds two
        # transformers takes this list instead of its own. Without any layer in 4 bits it would warn once more.
        model = read(**_arguments(dtype, device, [*plain, *narrow])) if len(narrow) < count else read()
    for layer in _layers(model).values():
        # On CPUs with bfloat16 instructions bitsandbytes would rewrite a layer's weights at the first pass without
        # gradient and compute such passes in bfloat16 from then on: the policy that acts would not be the one learnt.
        layer.support_avx512bf16_for_cpu = False
    return model


def _arguments(dtype: torch.dtype, device: torch.device, left: Sequence[str] | None = None) -> dict[str, Any]:
    """Arguments of `from_pretrained`; layers in `left` are not quantised (None: transformers chooses them)."""
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise ModelError(
            f"model.quantize nf4 needs bitsandbytes, which cannot be imported ({error}); install it with "
            "pip install 'sacglam[nf4]', or set model.quantize to none"
        ) from error
    from transformers import BitsAndBytesConfig

    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
        llm_int8_skip_modules=None if left is None else [f"{re.escape(name)}$" for name in left],
    )
    return {"quantization_config": settings, "device_map": {"": device}}


def _layers(model: nn.Module) -> dict[str, Any]:
    """The quantised layers by name."""
    from bitsandbytes.nn import Linear4bit

    return {name: layer for name, layer in model.named_modules() if isinstance(layer, Linear4bit)}
