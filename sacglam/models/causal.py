"""Decoder-only language models behind the packed forward."""

from collections.abc import Sequence

from torch import Tensor
from transformers import PreTrainedModel
from typing_extensions import override

from sacglam.models.lora_lm import LoraLM, RunStack, decoder_of
from sacglam.models.packing import PackedCausal, additive, attention_mask, pack
from sacglam.models.tokens import TokenisedQuery


class CausalLM(LoraLM[PackedCausal]):
    """A `PackedLM` over any transformers decoder whose attention respects the given mask and positions.

    There is no list of such models: `sacglam.models.packing_check.check_packing` tries whether one is.
    """

    @staticmethod
    @override
    def packed(model: PreTrainedModel, queries: Sequence[TokenisedQuery], bucket: int) -> PackedCausal:
        return pack(queries, bucket)  # one sequence `[prompt | actions]` per query

    @staticmethod
    @override
    def hidden(model: PreTrainedModel, packed: PackedCausal, run: RunStack) -> Tensor:
        mask = additive(attention_mask(packed.end_BS), model.dtype)
        inputs = {"input_ids": packed.ids_BS, "position_ids": packed.positions_BS}
        return run(decoder_of(model), {**inputs, "attention_mask": mask, "use_cache": False})
