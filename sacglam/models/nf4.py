"""Base weights in 4 bits: NF4 with double quantisation (QLoRA, Dettmers et al. 2023).

The only file that knows bitsandbytes.
"""

from typing import Any

import torch
from transformers import BitsAndBytesConfig, PreTrainedModel

from sacglam.errors import ModelError


def nf4_arguments(dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """What transformers' `from_pretrained` is told, to quantise each layer as it is read; products are in `dtype`.

    The output layer and embeddings stay as they are, and T5's `wo`, whose activations are too large for few bits.

    Raises:
        ModelError: bitsandbytes is missing.
    """
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise ModelError(
            f"model.quantize nf4 needs bitsandbytes, which cannot be imported ({error}); install it with "
            "pip install -e '.[nf4]', or set model.quantize to none"
        ) from error
    settings = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    return {"quantization_config": settings, "device_map": {"": device}}


def keep_one_precision(model: PreTrainedModel) -> None:
    """Let passes with and without gradient compute the same.

    On CPUs with bfloat16 instructions bitsandbytes would rewrite a layer's weights at the first pass without gradient,
    and from then on compute such passes in bfloat16: the policy that acts would not be the one that learns.
    """
    from bitsandbytes.nn import Linear4bit

    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False
