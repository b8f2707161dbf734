"""Base weights in 4 bits: NF4 with double quantisation (QLoRA, Dettmers et al. 2023).

The only file that knows bitsandbytes.
"""

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from sacglam.errors import ModelError

Shape = tuple[int, int]
_TRIAL_ROWS = 256
_ROUNDING = 0.02
"""Above one unit in the last place of bfloat16; the scales of two blocks differ by more."""


def read_in_4_bits(read: Callable[..., Any], dtype: torch.dtype, device: torch.device) -> Any:
    """Quantise each layer as it is read; products are in `dtype`. `read` passes its arguments to `from_pretrained`.

    The output layer and embeddings stay as they are, and T5's `wo`, whose activations are too large for few bits. So
    do, with a warning, layers whose weights bitsandbytes dequantises wrongly.

    Raises:
        ModelError: bitsandbytes is missing.
    """
    model = read(**_arguments(dtype, device))
    shapes = {name: (layer.out_features, layer.in_features) for name, layer in _layers(model).items()}
    wrong = wrong_shapes(shapes.values(), dtype, device)
    if wrong:
        left = [name for name, shape in shapes.items() if shape in wrong]
        plain = [name for name, layer in model.named_modules() if type(layer) is nn.Linear]
        widths = ", ".join(str(width) for width in sorted({width for _, width in wrong}))
        warnings.warn(
            f"model.quantize nf4: {len(left)} of {len(shapes)} layers stay in full precision, because bitsandbytes "
            f"{version('bitsandbytes')} dequantises rows of {widths} weights wrongly on "
            f"{'this CPU' if device.type == 'cpu' else device}",
            stacklevel=3,
        )
        del model  # so that memory never holds two
        # transformers takes this list instead of its own. Without any layer in 4 bits it would warn once more.
        model = read(**_arguments(dtype, device, [*plain, *left])) if len(left) < len(shapes) else read()
    for layer in _layers(model).values():
        # On CPUs with bfloat16 instructions bitsandbytes would rewrite a layer's weights at the first pass without
        # gradient and compute such passes in bfloat16 from then on, so that the policy that acts would be another one.
        layer.support_avx512bf16_for_cpu = False
    return model


def wrong_shapes(shapes: Iterable[Shape], dtype: torch.dtype, device: torch.device) -> set[Shape]:
    """The shapes (outputs, inputs) of layers whose weights bitsandbytes dequantises wrongly.

    Blocks of 64 run over the flattened weight. With AVX-512, bitsandbytes 0.50.2 starts a new block at each row. Such a
    fault depends on the shape alone, so random weights show it, and 256 rows are enough.
    """
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    wrong = set()
    for shape in sorted(set(shapes)):
        weight = torch.randn(min(shape[0], _TRIAL_ROWS), shape[1], generator=torch.Generator().manual_seed(0))
        packed, state = quantize_4bit(weight.to(device, dtype), quant_type="nf4", compress_statistics=True)
        if not torch.allclose(dequantize_4bit(packed, state), plain_weights(packed, state), rtol=_ROUNDING, atol=0):
            wrong.add(shape)
    return wrong


def plain_weights(packed: Tensor, state: Any) -> Tensor:
    """The weights that 4 bits stand for, shape `state.shape`: W_i = code[packed_i] scale[i // 64], over W flattened."""
    indices = torch.stack([packed.flatten() >> 4, packed.flatten() & 15], dim=1)  # two in a byte, the upper half first
    values: Tensor = state.code[indices.int()].flatten()[: state.shape.numel()]
    scale = scales(state).repeat_interleave(state.blocksize)[: len(values)]
    return (values * scale).view(state.shape).to(state.dtype)


def scales(state: Any) -> Tensor:
    """The scale of each block, itself in 8 bits: code'[absmax_j] absmax'[j // 256] + offset (double quantisation)."""
    outer = state.state2.absmax.repeat_interleave(state.state2.blocksize)[: len(state.absmax)]
    return state.state2.code[state.absmax.int()] * outer + state.offset


def _arguments(dtype: torch.dtype, device: torch.device, left: Sequence[str] | None = None) -> dict[str, Any]:
    """Arguments of `from_pretrained`; layers in `left` are not quantised (None: transformers chooses them)."""
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise ModelError(
            f"model.quantize nf4 needs bitsandbytes, which cannot be imported ({error}); install it with "
            "pip install -e '.[nf4]', or set model.quantize to none"
        ) from error
    from transformers import BitsAndBytesConfig  # here, so that the doctor's trial needs no transformers

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
