"""Decoder-only language models behind the packed forward."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn
from transformers import PreTrainedModel
from typing_extensions import override

from sacglam.errors import ModelError
from sacglam.models.frozen_layers import FrozenLayers
from sacglam.models.lora_lm import LoraLM, RunStack, decoder_of
from sacglam.models.packing import PackedCausal, additive, attention_mask, distinct, pack
from sacglam.models.tokens import TokenisedQuery


class CausalLM(LoraLM[PackedCausal]):
    """A `PackedLM` over any transformers decoder whose attention respects the given mask and positions.

    There is no list of such models: `sacglam.models.packing_check.check_packing` tries whether one is.
    """

    frozen: FrozenLayers | None = None

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

    def keep_frozen(self, limit_bytes: int) -> None:
        """From now on, keep what the layers below the first adapted one compute, in at most so many bytes.

        Raises:
            ModelError: there are no such layers. Whether they can be left out, `packing_check.check_frozen` tries.
        """
        number = self._model.config.get_text_config().num_hidden_layers
        lists = [m for m in decoder_of(self._model).children() if isinstance(m, nn.ModuleList) and len(m) == number]
        if len(lists) != 1:
            raise ModelError(f"model.cache_mib needs a decoder with one list of {number} layers; set it to 0")
        self.frozen = FrozenLayers(list(lists[0]), limit_bytes)

    @override
    def pack(self, queries: Sequence[TokenisedQuery]) -> PackedCausal:
        packed = super().pack(queries)
        if self.frozen is None:
            return packed
        queries, _ = distinct(queries)
        outputs = self.frozen.outputs(queries, self._run_alone)
        frozen_BSH = outputs[0].new_zeros(*packed.ids_BS.shape, outputs[0].shape[-1])
        width = max(len(query.prompt) for query in queries)
        for row_SH, query, output_TH in zip(frozen_BSH, queries, outputs, strict=True):
            start = width - len(query.prompt)
            row_SH[start : start + len(output_TH)] = output_TH
        return replace(packed, frozen_BSH=frozen_BSH)

    def _run_alone(self, query: TokenisedQuery) -> Tensor:
        packed = self.packed(self._model, [query], 1).to(self.device)
        return self.hidden(self._model, packed, lambda stack, inputs: stack(**inputs).last_hidden_state)

    @override
    def _hidden(self, packed: PackedCausal, adapter: str) -> Tensor:
        if self.frozen is None or packed.frozen_BSH is None:
            return super()._hidden(packed, adapter)
        with self.frozen.skipped(packed.frozen_BSH):
            return super()._hidden(packed, adapter)
