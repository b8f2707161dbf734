"""Decoder-only language models behind the packed forward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from peft import LoraConfig
from torch import Tensor
from transformers import PreTrainedModel

from sacglam.models.base import ACTOR
from sacglam.models.lora_lm import AdaptedLM, as_taken, decoder_of
from sacglam.models.packing import PackedCausal, attention_mask, pack
from sacglam.models.tokens import TokenisedQuery


class CausalLM(AdaptedLM[PackedCausal]):
    """A `PackedLM` over any transformers decoder whose attention takes a mask and positions as given.

    Whether it does is not looked up in a list but tried: see `sacglam.models.packing_check.check_packing`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        lora: LoraConfig,
        adapters: Iterable[str] = (ACTOR,),
        *,
        bucket: int = 1,
        merged: bool = False,
    ) -> None:
        """See `AdaptedLM`."""
        self._decoder = decoder_of(model)
        super().__init__(model, lora, adapters, [self._decoder], bucket=bucket, merged=merged)

    def pack(self, queries: Sequence[TokenisedQuery]) -> PackedCausal:
        """One sequence `[prompt | a1 | a2 | ...]` for each query, on the model's device."""
        return pack(queries, self._bucket).to(self.device)

    def _hidden(self, packed: PackedCausal, adapter: str) -> Tensor:
        return self._run(self._decoder, adapter, decoder_inputs(self._model, packed))


def decoder_inputs(model: PreTrainedModel, packed: PackedCausal) -> dict[str, Any]:
    """The packed batch as keyword arguments of a transformers decoder."""
    return {
        "input_ids": packed.ids_BS,
        "position_ids": packed.positions_BS,
        "attention_mask": as_taken(attention_mask(packed.segment_BS), model),
        "use_cache": False,
    }
