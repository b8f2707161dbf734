"""What passes through the language model: tokens, and FLOP by torch's counter."""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from sacglam.config.sections import ModelConfig
from sacglam.models.packed_lm import ACTOR, LMOutput, PackedLM
from sacglam.models.packing import Packed

_ROWS = 4096
_TIMED_S = 0.1


class PassCounter:
    """Counts what passes through a language model: tokens always, FLOP inside `flop`, a context to enter once."""

    def __init__(self, lm: PackedLM, model: ModelConfig) -> None:
        """Wrap `lm.forward` permanently."""
        self.tokens = 0
        """Of prompts and actions; with an encoder-decoder, each action's start token included."""
        self.positions = 0
        """Computed, padding included."""
        self.flop = FlopCounterMode(display=False, custom_mapping=_more_kernels(model))
        forward = lm.forward

        @wraps(forward)
        def counted(packed: Packed, adapter: str = ACTOR) -> LMOutput:
            self._count(packed)
            return forward(packed, adapter)

        lm.forward = counted  # type: ignore[method-assign]

    def _count(self, packed: Packed) -> None:
        self.tokens += len(packed.token_id_N)
        self.positions += packed.ids_BS.numel()
        if packed.positions_BS is not None:
            self.tokens += _once(packed, packed.positions_BS.flatten()[packed.prompt_row_B] + 1)
        elif packed.prompt_ids_BP is not None and packed.prompt_mask_BP is not None:
            self.tokens += int(packed.prompt_mask_BP.sum()) + _once(packed, packed.actions_BA.sum(dim=1))
            self.positions += packed.prompt_ids_BP.numel()


def _once(packed: Packed, number_B: torch.Tensor) -> int:
    """The sum over states; those that share a row count once."""
    return sum(dict(zip(packed.prompt_row_B.tolist(), number_B.tolist(), strict=True)).values())


def _more_kernels(model: ModelConfig) -> dict[Any, Callable[..., int]]:
    """Formulas for kernels that torch's counter does not know; they get shapes instead of tensors."""
    aten = torch.ops.aten
    found: dict[Any, Callable[..., int]] = {
        aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),  # type: ignore[no-untyped-call]
        aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda g, q, k, v, *_, **__: (
            sdpa_backward_flop_count(g, q, k, v)  # type: ignore[no-untyped-call]
        ),
    }
    if model.quantize == "nf4":
        found[torch.ops.bitsandbytes.gemm_4bit] = lambda x, packed, shape, *_, **__: 2 * math.prod(x) * shape[0]
    return found


def matmul_rate(hidden: int, dtype: torch.dtype, device: str) -> float:
    """FLOP per second of the products in a layer of this hidden size: (4096, H) x (H, 4 H).

    The fastest timing counts, since other programs on the machine can only slow one down.
    """
    x, weight = (torch.ones(n, hidden, dtype=dtype, device=device) for n in (_ROWS, 4 * hidden))
    timer = Timer("x @ weight.T", globals={"x": x, "weight": weight}, num_threads=torch.get_num_threads())
    return 2 * _ROWS * weight.numel() / min(timer.blocked_autorange(min_run_time=_TIMED_S).times)
