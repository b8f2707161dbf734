"""A frozen language model with LoRA adapters: what decoder-only and encoder-decoder models have in common."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Generic, TypeVar

import torch
from peft import LoraConfig, LoraModel, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils import CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import save
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from sacglam.errors import ModelError
from sacglam.models.base import ACTOR, LMOutput
from sacglam.models.logprobs import SelectedLogProbs
from sacglam.models.packing import Packed, additive
from sacglam.models.tokens import TokenisedQuery

P = TypeVar("P", bound=Packed)


class AdaptedLM(ABC, Generic[P]):
    """The part of a `PackedLM` that does not depend on how its packed batch P is laid out."""

    def __init__(
        self,
        model: PreTrainedModel,
        lora: LoraConfig,
        adapters: Iterable[str],
        stacks: Sequence[nn.Module],
        *,
        bucket: int = 1,
        merged: bool = False,
        scale: float = 1.0,
    ) -> None:
        """Freeze `model` and add one LoRA adapter for each name in `adapters`; all start alike: as the base model.

        `stacks` are the parts of `model` that `_run` is given. `bucket` rounds packed lengths up to its multiples, so
        that kernels meet few shapes. `merged` computes (W + s B A) x instead of W x + s B (A x): the same function,
        faster where the model is hardly wider than the adapter's rank, and never for a large model, since it makes
        each layer's sum anew in every pass. `scale` multiplies hidden states on their way to the output layer.
        """
        if merged and model.is_gradient_checkpointing:
            raise ModelError(
                "model.lora.merged and model.gradient_checkpointing exclude each other: a layer would be recomputed "
                "without its adapter; set one of them to false"
            )
        names = list(adapters)
        self._model = model
        self._peft, self._tuner = _add_adapters(model, lora, names)
        self._output = output_layer_of(model)
        self._log_probs = SelectedLogProbs(self._output, scale)
        self._hidden_size = int(self._output.weight.shape[1])
        self._bucket = bucket
        self._merged = merged
        self._lora_layers = {stack: _lora_layers(stack) for stack in stacks}
        self._check_targets(names[0])
        self._adapters = {name: self._find_parameters(name) for name in names}
        # Adapters share their first values, so that a target equals what it follows from the start.
        for name in names[1:]:
            copy_parameters(self._adapters[names[0]], self._adapters[name])
        if merged:
            self._tuner.disable_adapter_layers()  # for good: the adapters come in through the merged weights
        if model.is_gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": self._checkpoint_contexts})
        # peft lets only the active adapter train, and none while adapters are disabled.
        for parameters in self._adapters.values():
            for parameter in parameters.values():
                parameter.requires_grad_(True)
        self._active = names[0]

    @property
    def hidden_size(self) -> int:
        """H, the width of the hidden states."""
        return self._hidden_size

    @property
    def module(self) -> nn.Module:
        """The base model with its adapters, and what scores tokens."""
        return nn.ModuleList([self._peft, self._log_probs])

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._output.weight.device

    @abstractmethod
    def pack(self, queries: Sequence[TokenisedQuery]) -> P:
        """Queries as tensors on the model's device."""

    @abstractmethod
    def _hidden(self, packed: P, adapter: str) -> Tensor:
        """Last hidden states (B, S, H) at the positions of `packed.ids_BS`."""

    def forward(self, packed: P, adapter: str = ACTOR) -> LMOutput:
        """One pass over the packed states: log-probs of all actions and the hidden states for the critic."""
        hidden_BSH = self._hidden(packed, adapter)
        hidden_XH = hidden_BSH.flatten(0, 1)  # X: all B * S positions
        log_prob_N = self._log_probs(hidden_XH[packed.scored_rows_R], packed.token_row_N, packed.token_id_N)
        padded_N = torch.cat([log_prob_N, log_prob_N.new_zeros(1)])
        return LMOutput(
            log_probs_BA=padded_N[packed.token_index_BAT].sum(dim=-1),  # Eq. 1
            action_hidden_BAH=hidden_XH[packed.last_row_BA],
            prompt_hidden_BH=hidden_XH[packed.prompt_row_B],
            actions_BA=packed.actions_BA,
            lengths_BA=packed.lengths_BA,
        )

    def _run(self, stack: nn.Module, adapter: str, inputs: Mapping[str, Any]) -> Tensor:
        """The last hidden state that `stack` gives with the named adapter."""
        if self._merged:
            output = functional_call(stack, self._merged_weights(stack, adapter), args=(), kwargs=dict(inputs))
        else:
            self._select(adapter)
            output = stack(**inputs)
        hidden: Tensor = output.last_hidden_state
        return hidden

    def _merged_weights(self, stack: nn.Module, adapter: str) -> dict[str, Tensor]:
        """W + s B A of every layer that has an adapter, by the name of its base weight."""
        layers = self._lora_layers[stack].items()
        return {f"{name}.base_layer.weight": _merged(layer, adapter) for name, layer in layers}

    def adapter_parameters(self, adapter: str) -> dict[str, nn.Parameter]:
        """The LoRA weights of `adapter`, by their names in a saved peft adapter."""
        if adapter not in self._adapters:
            raise ModelError(f"this model has no adapter {adapter!r}; it has {', '.join(self._adapters)}")
        return dict(self._adapters[adapter])

    def _find_parameters(self, adapter: str) -> dict[str, nn.Parameter]:
        marker = f".{adapter}."
        return {n.replace(marker, "."): p for n, p in self._peft.named_parameters() if "lora_" in n and marker in n}

    def _check_targets(self, adapter: str) -> None:
        """Refuse an adapter where its change would be lost: on the output layer, and merged on an embedding."""
        if isinstance(self._output, LoraLayer):
            raise ModelError(
                "model.lora.targets names the output layer, whose adapter engines drop from prompt log-probabilities; "
                "use all-linear, which leaves it out, or name other layers"
            )
        layers = [layer for layers in self._lora_layers.values() for layer in layers.items()]
        unmergeable = [name for name, layer in layers if adapter not in layer.lora_A]
        if self._merged and unmergeable:
            raise ModelError(
                f"model.lora.merged needs linear layers, but model.lora.targets names {unmergeable}; leave them out, "
                "or set model.lora.merged to false"
            )

    def adapter_files(self, adapter: str = ACTOR) -> dict[str, bytes]:
        """`adapter` as the files of a peft folder, by name: the form that peft and vLLM load."""
        settings = {**self._peft.peft_config[adapter].to_dict(), "inference_mode": True}
        plain = {name: sorted(value) if isinstance(value, set) else value for name, value in settings.items()}
        tensors = {name: p.detach().cpu().contiguous() for name, p in self.adapter_parameters(adapter).items()}
        return {
            CONFIG_NAME: json.dumps(plain, indent=2, sort_keys=True).encode(),
            SAFETENSORS_WEIGHTS_NAME: save(tensors, metadata={"format": "pt"}),
        }

    def _select(self, adapter: str) -> None:
        if adapter == self._active:
            return
        # peft lets only the active adapter train; a joint backward over two adapters needs both to keep their gradient.
        parameters = [p for by_name in self._adapters.values() for p in by_name.values()]
        flags = [parameter.requires_grad for parameter in parameters]
        self._tuner.set_adapter(adapter)
        for parameter, flag in zip(parameters, flags, strict=True):
            parameter.requires_grad_(flag)
        self._active = adapter

    def _checkpoint_contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """For a checkpointed layer's first and second run: the second needs the first's adapter, whatever is active."""
        return nullcontext(), self._selected(self._active)

    @contextmanager
    def _selected(self, adapter: str) -> Iterator[None]:
        # Left selected afterwards: the next layer to be recomputed wants the same, and every forward selects its own.
        self._select(adapter)
        yield


def _merged(layer: Any, adapter: str) -> Tensor:
    """W + s B A, summed in the adapter's precision, in the base weight's type and orientation."""
    down, up = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
    left, right = (down.T, up.T) if layer.fan_in_fan_out else (up, down)
    weight = layer.base_layer.weight
    return torch.addmm(weight.to(up.dtype), left, right, alpha=layer.scaling[adapter]).to(weight.dtype)


def _add_adapters(model: PreTrainedModel, lora: LoraConfig, names: Sequence[str]) -> tuple[PeftModel, LoraModel]:
    """Put LoRA layers into `model`, in place."""
    try:
        peft_model = get_peft_model(model, lora, adapter_name=names[0])
    except ValueError as error:
        raise ModelError(f"no adapter fits model.lora.targets={lora.target_modules!r}: {error}") from error
    for name in names[1:]:
        peft_model.add_adapter(name, lora)
    tuner = peft_model.base_model
    assert isinstance(peft_model, PeftModel)
    assert isinstance(tuner, LoraModel)
    return peft_model, tuner


def _lora_layers(stack: nn.Module) -> dict[str, LoraLayer]:
    return {name: module for name, module in stack.named_modules() if isinstance(module, LoraLayer)}


def decoder_of(model: PreTrainedModel) -> nn.Module:
    """The model without its output layer."""
    decoder: nn.Module = model.get_decoder()
    return decoder


def output_layer_of(model: PreTrainedModel) -> nn.Linear:
    """The layer from hidden states to logits."""
    layer: nn.Linear = model.get_output_embeddings()
    return layer


def as_taken(mask: Tensor, model: PreTrainedModel) -> Tensor:
    """A boolean mask in the form that the model's attention takes."""
    return additive(mask, model.dtype) if model.config._attn_implementation == "eager" else mask


def copy_parameters(source: dict[str, nn.Parameter], destination: dict[str, nn.Parameter]) -> None:
    """Copy values name by name."""
    with torch.no_grad():
        for name, parameter in source.items():
            destination[name].copy_(parameter)
