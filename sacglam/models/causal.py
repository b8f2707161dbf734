"""Decoder-only language models with LoRA adapters, behind the packed forward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from sacglam.errors import ModelError
from sacglam.models.base import ACTOR, LMOutput
from sacglam.models.logprobs import selected_log_probs
from sacglam.models.packing import Packed, additive, attention_mask, pack
from sacglam.models.tokens import TokenisedQuery


class CausalLM:
    """A `PackedLM` over any transformers decoder whose attention takes a mask and positions as given.

    Whether it does is not looked up in a list but tried: see `sacglam.models.loading.check_packing`.
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
        """Freeze `model` and add one LoRA adapter for each name in `adapters`; all start alike: as the base model.

        `bucket` rounds the packed length up to its multiples, so that kernels meet few shapes. `merged` computes
        (W + s B A) x instead of W x + s B (A x): the same function, faster where the model is hardly wider than the
        adapter's rank, and never for a large model, since it makes each layer's sum anew in every pass.
        """
        names = list(adapters)
        peft_model = get_peft_model(model, lora, adapter_name=names[0])
        for name in names[1:]:
            peft_model.add_adapter(name, lora)
        assert isinstance(peft_model, PeftModel)
        self._peft = peft_model
        self._model = model
        self._decoder: nn.Module = model.get_decoder()
        self._output: nn.Module = model.get_output_embeddings()
        self._bucket = bucket
        self._merged = merged
        self._lora_layers = {n: m for n, m in self._decoder.named_modules() if isinstance(m, LoraLayer)}
        self._active = ""
        self._trainable = {name: list(self.adapter_parameters(name).values()) for name in names}
        # Adapters share their first values, so that a target equals what it follows from the start.
        for name in names[1:]:
            copy_parameters(self.adapter_parameters(names[0]), self.adapter_parameters(name))
        self._select(names[0])

    @property
    def hidden_size(self) -> int:
        """H, the width of the hidden states."""
        return int(self._output.weight.shape[1])  # type: ignore[union-attr, arg-type]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._output.weight.device  # type: ignore[return-value]

    def pack(self, queries: Sequence[TokenisedQuery]) -> Packed:
        """One sequence `[prompt | a1 | a2 | ...]` for each query, on the model's device."""
        return pack(queries, self._bucket).to(self.device)

    def forward(self, packed: Packed, adapter: str = ACTOR) -> LMOutput:
        """One pass over the packed states: log-probs of all actions and the hidden states for the critic."""
        hidden_BSH = self._hidden(packed, adapter)
        hidden_XH = hidden_BSH.flatten(0, 1)  # X: all B * S positions
        log_prob_N = selected_log_probs(
            hidden_XH[packed.scored_rows_R],
            self._output.weight,  # type: ignore[arg-type]
            packed.token_row_N,
            packed.token_id_N,
        )
        padded_N = torch.cat([log_prob_N, log_prob_N.new_zeros(1)])
        return LMOutput(
            log_probs_BA=padded_N[packed.token_index_BAT].sum(dim=-1),  # Eq. 1
            action_hidden_BAH=hidden_XH[packed.last_row_BA],
            prompt_hidden_BH=hidden_XH[packed.prompt_row_B],
            actions_BA=packed.actions_BA,
            lengths_BA=packed.lengths_BA,
        )

    def _hidden(self, packed: Packed, adapter: str) -> Tensor:
        inputs = decoder_inputs(self._model, packed)
        if self._merged:
            with self._peft.disable_adapter():
                output = functional_call(self._decoder, self._merged_weights(adapter), args=(), kwargs=inputs)
        else:
            self._select(adapter)
            output = self._decoder(**inputs)
        hidden_BSH: Tensor = output.last_hidden_state
        return hidden_BSH

    def _merged_weights(self, adapter: str) -> dict[str, Tensor]:
        """W + s B A of every layer that has an adapter, by the name of its base weight."""
        return {
            f"{name}.base_layer.weight": torch.addmm(
                layer.base_layer.weight,
                layer.lora_B[adapter].weight,
                layer.lora_A[adapter].weight,
                alpha=layer.scaling[adapter],
            )
            for name, layer in self._lora_layers.items()
        }

    def module(self) -> nn.Module:
        """The peft model: base weights and adapters."""
        return self._peft

    def adapter_parameters(self, adapter: str) -> dict[str, nn.Parameter]:
        """The LoRA weights of `adapter`, by their names in a saved peft adapter."""
        marker = f".{adapter}."
        found = {n.replace(marker, "."): p for n, p in self._peft.named_parameters() if "lora_" in n and marker in n}
        if not found:
            raise ModelError(f"this model has no adapter {adapter!r}")
        return found

    def save_adapter(self, folder: str, adapter: str = ACTOR) -> None:
        """Write `adapter` as a peft folder (safetensors), the form that peft and vLLM load."""
        self._peft.save_pretrained(folder, selected_adapters=[adapter], safe_serialization=True)

    def _select(self, adapter: str) -> None:
        if adapter == self._active:
            return
        self._peft.base_model.set_adapter(adapter)
        # peft lets only the active adapter train; a joint backward over two adapters needs both to keep their gradient.
        for parameters in self._trainable.values():
            for parameter in parameters:
                parameter.requires_grad_(True)
        self._active = adapter


def decoder_inputs(model: PreTrainedModel, packed: Packed) -> dict[str, Any]:
    """The packed batch as keyword arguments of a transformers decoder."""
    mask = attention_mask(packed.segment_BS)
    return {
        "input_ids": packed.ids_BS,
        "position_ids": packed.positions_BS,
        "attention_mask": additive(mask, model.dtype) if model.config._attn_implementation == "eager" else mask,
        "use_cache": False,
    }


def copy_parameters(source: dict[str, nn.Parameter], destination: dict[str, nn.Parameter]) -> None:
    """Copy values name by name."""
    with torch.no_grad():
        for name, parameter in source.items():
            destination[name].copy_(parameter)
