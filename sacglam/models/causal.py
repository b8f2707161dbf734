"""Decoder-only language models behind the packed forward."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from inspect import signature

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from typing_extensions import override

from sacglam.errors import ModelError
from sacglam.models.frozen_layers import FrozenLayers, replaced
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
        layers = self._layers
        if not layers:
            raise ModelError("model.cache_mib needs a decoder with one list of all its layers; set it to 0")
        self.frozen = FrozenLayers(layers, limit_bytes)

    @cached_property
    def _layers(self) -> list[nn.Module]:
        """The decoder's layers in order; empty where it has no one list of all."""
        number = getattr(self._model.config.get_text_config(), "num_hidden_layers", None)
        lists = [m for m in decoder_of(self._model).children() if isinstance(m, nn.ModuleList) and len(m) == number]
        return list(lists[0]) if len(lists) == 1 else []

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
        """The last layer's MLP, if it takes positions one by one: linear layers are all that it has."""
        mlp = getattr(self._layers[-1], "mlp", None) if self._layers else None
        if not isinstance(mlp, nn.Module) or self._model.is_gradient_checkpointing:  # whose second run is not ours
            return None
        owners = [m for m in mlp.modules() if next(m.parameters(recurse=False), None) is not None]
        plain = all(isinstance(m, nn.Linear) for m in owners) and len(signature(mlp.forward).parameters) == 1
        return mlp if plain else None

    @contextmanager
    def _only_read(self, read_rows_K: Tensor) -> Iterator[None]:
        """A context in which the last MLP leaves out the positions that nothing reads, as no layer comes after it.

        They are the prompt's, but for its last, and padding: more than half.
        """
        if self._last_mlp is None:
            yield
            return
        mlp = self._last_mlp.forward

        def forward(hidden_BSH: Tensor) -> Tensor:
            hidden_XH = hidden_BSH.flatten(0, 1)
            read_1KH = mlp(hidden_XH[read_rows_K][None])
            return torch.zeros_like(hidden_XH).index_copy(0, read_rows_K, read_1KH[0]).view_as(hidden_BSH)

        with replaced([self._last_mlp], forward):
            yield

    @override
    def _hidden(self, packed: PackedCausal, adapter: str) -> Tensor:
        with self._only_read(packed.read_rows_K):
            if self.frozen is None or packed.frozen_BSH is None:
                return super()._hidden(packed, adapter)
            with self.frozen.skipped(packed.frozen_BSH):
                return super()._hidden(packed, adapter)
