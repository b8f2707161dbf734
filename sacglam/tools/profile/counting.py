"""What passes through the language model: tokens, and FLOP by torch's counter."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from typing import Any

import torch
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from sacglam.config.sections import ModelConfig
from sacglam.models.packed_lm import ACTOR, LMOutput, PackedLM
from sacglam.models.packing import Packed
from sacglam.tools.profile.phases import Recorder, ordered
from sacglam.tools.profile.result import Work

_ROWS = 4096
_TIMED_S = 0.1


@dataclass(frozen=True)
class Pass:
    """One packed forward pass, and the FLOP counted before it."""

    phase: str
    tokens: int  # of prompts and actions; with an encoder-decoder, each action's start token included
    computed: int  # positions, padding included
    flop_before: int


class PassCounter:
    """Lists the passes of a language model, and counts FLOP inside `flop`, a context to enter at most once."""

    def __init__(self, lm: PackedLM, recorder: Recorder, model: ModelConfig) -> None:
        """Wrap `lm.forward` permanently; `recorder` knows the phase of each pass."""
        self.passes: list[Pass] = []
        self.flop = FlopCounterMode(display=False, custom_mapping=_more_kernels(model))
        self._recorder = recorder
        forward = lm.forward

        @wraps(forward)
        def listed(packed: Packed, adapter: str = ACTOR) -> LMOutput:
            self.passes.append(self._pass(packed))
            return forward(packed, adapter)

        lm.forward = listed  # type: ignore[method-assign]

    def _pass(self, packed: Packed) -> Pass:
        tokens, computed = len(packed.token_id_N), packed.ids_BS.numel()
        if packed.positions_BS is not None:
            tokens += _once(packed, packed.positions_BS.flatten()[packed.prompt_row_B] + 1)
        elif packed.prompt_ids_BP is not None and packed.prompt_mask_BP is not None:
            tokens += int(packed.prompt_mask_BP.sum()) + _once(packed, packed.actions_BA.sum(dim=1))
            computed += packed.prompt_ids_BP.numel()
        return Pass(self._recorder.phase, tokens, computed, self.flop.get_total_flops())

    def work(self, start: int, end: int) -> dict[str, Work]:
        """The work by phase of passes `start` to `end` (exclusive), at the FLOP per position of the counted passes.

        Everything between one pass and the next belongs to the first: its backward pass, and the critic's heads.
        """
        flop, positions = Counter[str](), Counter[str]()
        for this, following in pairwise(self.passes):
            counted = following.flop_before - this.flop_before
            flop[this.phase] += counted
            positions[this.phase] += this.computed if counted else 0
        found = {}
        for phase in ordered(each.phase for each in self.passes[start:end]):
            passes = [each for each in self.passes[start:end] if each.phase == phase]
            computed = sum(each.computed for each in passes)
            found[phase] = Work(
                sum(each.tokens for each in passes), computed, computed * flop[phase] // positions[phase]
            )
        return found


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
