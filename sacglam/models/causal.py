"""Decoder-only language models behind the packed forward."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property

from torch import Tensor, nn
from transformers import PreTrainedModel
from typing_extensions import override

from sacglam.errors import ModelError
from sacglam.models.layers import FrozenLayers, last_mlp_of, layers_of, only_at
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
        layers = layers_of(self._model)
        if not layers:
            raise ModelError("model.cache_mib needs a decoder with one list of all its layers; set it to 0")
        self.frozen = FrozenLayers(layers, limit_bytes)

    @override
    def pack(self, queries: Sequence[TokenisedQuery]) -> PackedCausal:
        packed = super().pack(queries)
        if self.frozen is None:
            return packed
        queries, _ = distinct(queries)
        outputs = self.frozen.outputs(queries, self._run_alone)
        frozen_BSH = outputs[0].new_zeros(*packed.ids_BS.shape, outputs[0].shape[-1])
        for row_SH, output_TH in zip(frozen_BSH, outputs, strict=True):
            row_SH[: len(output_TH)] = output_TH
        return replace(packed, frozen_BSH=frozen_BSH)

    def _run_alone(self, query: TokenisedQuery) -> Tensor:
        packed = self.packed(self._model, [query], 1).to(self.device)
        return self.hidden(self._model, packed, lambda stack, inputs: stack(**inputs).last_hidden_state)

    @override
    def compile_layers(self, backend: str = "inductor") -> None:
        super().compile_layers(backend)
        self._last_mlp = None  # a layer would be compiled again for every batch

    @cached_property
    def _last_mlp(self) -> nn.Module | None:
        """The MLP that leaves out positions, which a checkpointed layer's second run could not know."""
        return None if self._model.is_gradient_checkpointing else last_mlp_of(self._model)

    @override
    def _hidden(self, packed: PackedCausal, adapter: str) -> Tensor:
        with ExitStack() as stack:
            if self._last_mlp is not None:
                stack.enter_context(only_at(self._last_mlp, packed.read_rows_K))
            if self.frozen is not None and packed.frozen_BSH is not None:
                stack.enter_context(self.frozen.skipped(packed.frozen_BSH))
            return super()._hidden(packed, adapter)
