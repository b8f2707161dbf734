"""What passes through the language model: tokens, FLOP by torch's counter, and the floor of an environment step."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from transformers import PreTrainedConfig, PreTrainedModel

from sacglam.config import Config
from sacglam.config.sections import ModelConfig
from sacglam.models.architectures import architecture_of
from sacglam.models.layers import last_mlp_of, only_at
from sacglam.models.loading import load_shape
from sacglam.models.packed_lm import ACTOR, LMOutput, PackedLM
from sacglam.models.packing import Packed
from sacglam.tools.profile.phases import Recorder, ordered
from sacglam.tools.profile.result import Floor, Work

_ROWS = 4096
_TIMED_S = 0.1  # for each shape


@dataclass(frozen=True)
class Pass:
    """One packed forward pass: its positions by kind, and the FLOP counted before it."""

    phase: str
    states: int
    prompt: int
    actions: int  # with an encoder-decoder, each action's start token included
    scored: int  # rows that the output layer sees
    computed: int  # positions, padding included
    flop_before: int

    @property
    def tokens(self) -> int:
        """Positions without padding."""
        return self.prompt + self.actions


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
        prompt, actions, computed = 0, len(packed.token_id_N), packed.ids_BS.numel()
        if packed.positions_BS is not None:
            prompt = _once(packed, packed.positions_BS.flatten()[packed.prompt_row_B] + 1)
        elif packed.prompt_ids_BP is not None and packed.prompt_mask_BP is not None:
            prompt = int(packed.prompt_mask_BP.sum())
            actions += _once(packed, packed.actions_BA.sum(dim=1))
            computed += packed.prompt_ids_BP.numel()
        return Pass(
            phase=self._recorder.phase,
            states=len(packed.ids_BS),
            prompt=prompt,
            actions=actions,
            scored=len(packed.scored_rows_R),
            computed=computed,
            flop_before=self.flop.get_total_flops(),
        )

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


def floor_of(config: Config, passes: Iterable[Pass]) -> Floor:
    """The floor of an environment step, for the states that the rollout scored, at the pace of this machine."""
    scored = [each for each in passes if each.phase == "scoring"]
    states = sum(each.states for each in scored)
    base, interval = weightless(load_shape(config.model)), config.algo.update_interval
    return Floor(
        forwards=config.forward_passes(interval, config.algo.updates) / interval,
        state_flop=state_flop(
            base,
            prompt=round(sum(each.prompt for each in scored) / states),
            actions=round(sum(each.actions for each in scored) / states),
            scored=sum(each.scored for each in scored) / states,
        ),
        matmul_rate=matmul_rate(layer_shapes(base), getattr(torch, config.model.dtype), config.device),
    )


def weightless(shape: PreTrainedConfig) -> PreTrainedModel:
    """A base model of fake tensors: its passes take neither time nor memory, but their FLOP are counted."""
    with FakeTensorMode():
        model: PreTrainedModel = architecture_of(shape).auto.from_config(shape, attn_implementation="eager")
    return model.requires_grad_(False)


def state_flop(base: PreTrainedModel, prompt: int, actions: int, scored: float) -> float:
    """FLOP of one forward pass of a `weightless` model at a state of these positions, of which `scored` are scored.

    As in `PackedLM`, a decoder-only model's last MLP runs only from the prompt's last position on.
    """
    output: Tensor = base.get_output_embeddings().weight
    assert isinstance(output, FakeTensor)
    with FlopCounterMode(display=False) as counter, output.fake_mode:
        if base.config.is_encoder_decoder:
            encoded = base.get_encoder()(torch.zeros(1, prompt, dtype=torch.long)).last_hidden_state
            base.get_decoder()(
                torch.zeros(1, actions, dtype=torch.long), encoder_hidden_states=encoded, use_cache=False
            )
        else:
            mlp, length = last_mlp_of(base), prompt + actions
            with only_at(mlp, torch.arange(prompt - 1, length)) if mlp is not None else nullcontext():
                base.get_decoder()(torch.zeros(1, length, dtype=torch.long), use_cache=False)
    return float(counter.get_total_flops() + 2 * output.numel() * scored)


def layer_shapes(base: PreTrainedModel) -> Counter[tuple[int, ...]]:
    """How often each shape of a matrix occurs in the layers, an encoder's included; embeddings are left out."""
    output = base.get_output_embeddings()
    return Counter(
        tuple(parameter.shape)
        for module in base.modules()
        if module is not output and not isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
        if parameter.ndim == 2
    )


def matmul_rate(matrices: Mapping[tuple[int, ...], int], dtype: torch.dtype, device: str) -> float:
    """FLOP per second of (4096, k) x (k, n) products, over matrices of shape (n, k), each as often as it occurs.

    The fastest timing of each shape counts, since other programs on the machine can only slow one down.
    """
    flop, seconds = 0, 0.0
    for (outputs, inputs), count in matrices.items():
        x, weight = (torch.ones(n, inputs, dtype=dtype, device=device) for n in (_ROWS, outputs))
        tensors = {"x": x, "weight": weight}
        timer = Timer("x @ weight.T", globals=tensors, num_threads=torch.get_num_threads())
        seconds += count * min(timer.blocked_autorange(min_run_time=_TIMED_S).times)
        flop += count * 2 * _ROWS * inputs * outputs
    return flop / seconds
