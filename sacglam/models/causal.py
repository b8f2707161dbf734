"""Decoder-only language models behind the packed forward."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from typing_extensions import override

from sacglam.models.lora_lm import LoraLM, mask_for
from sacglam.models.packing import PackedCausal, pack
from sacglam.models.tokens import TokenisedQuery


class CausalLM(LoraLM[PackedCausal]):
    """A `PackedLM` over any transformers decoder whose attention respects the given mask and positions.

    There is no list of such models: `sacglam.models.packing_check.check_packing` tries whether one is.
    """

    @override
    def pack(self, queries: Sequence[TokenisedQuery]) -> PackedCausal:
        return pack(queries, self._bucket).to(self.device)  # one sequence `[prompt | a1 | a2 | ...]` per query

    @override
    def _hidden(self, packed: PackedCausal, adapter: str) -> Tensor:
        return self._run(self._decoder, adapter, decoder_inputs(self._model, packed))


def decoder_inputs(model: PreTrainedModel, packed: PackedCausal) -> dict[str, Any]:
    """The packed batch as keyword arguments of a transformers decoder."""
    return {
        "input_ids": packed.ids_BS,
        "position_ids": packed.positions_BS,
        "attention_mask": mask_for(model, packed),
        "use_cache": False,
    }
