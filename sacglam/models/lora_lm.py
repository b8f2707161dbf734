"""A frozen language model with LoRA adapters: the common part of decoder-only and encoder-decoder models."""

import json
import os
import re
import shutil
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from peft import LoraConfig, LoraModel, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils import CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import save
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from typing_extensions import override

from sacglam.errors import ModelError
from sacglam.memory import free_bytes
from sacglam.models.base import ACTOR, LMOutput, PackedLM
from sacglam.models.logprobs import SelectedLogProbs
from sacglam.models.lora_linear import LoraLinear
from sacglam.models.packing import Packed, distinct
from sacglam.models.tokens import TokenisedQuery

P = TypeVar("P", bound=Packed)
_MOST_GRAPHS = 64  # of a layer; torch gives up at 8, which two adapters can reach
RunStack = Callable[[nn.Module, dict[str, Any]], Tensor]
"""Runs a part of a model with keyword arguments, and returns its last hidden state."""
_SMALL_BYTES = 64 << 20
"""Masks below this size are not held against the free memory."""


class LoraLM(PackedLM, Generic[P]):
    """The part of a `PackedLM` that does not depend on the layout of its packed batch P."""

    def __init__(
        self,
        model: PreTrainedModel,
        lora: LoraConfig,
        adapters: Iterable[str] = (ACTOR,),
        *,
        bucket: int = 1,
        merged: bool = False,
    ) -> None:
        """Freeze `model` and add one LoRA adapter for each name in `adapters`; initially all equal the base model.

        `bucket` rounds packed lengths up to its multiples, so that kernels see few shapes. `merged` computes
        (W + s B A) x instead of W x + s B (A x): the same function, faster where the model is hardly wider than the
        adapter's rank, and never for a large model, since every pass computes each layer's sum again.
        """
        if merged and model.is_gradient_checkpointing:
            raise ModelError(
                "model.lora.merged and model.gradient_checkpointing exclude each other: a layer would be recomputed "
                "without its adapter; set one of them to false"
            )
        if merged and model.dtype == torch.bfloat16:
            raise ModelError(
                "model.lora.merged and model.dtype bfloat16 exclude each other: W + s B A would be rounded to three "
                "digits of W, and small updates lost; set model.lora.merged to false, or model.dtype to float32"
            )
        names = list(adapters)
        lora = self._within_stacks(model, lora)
        self._model = model
        scale = self.scale(model)
        self._peft, self._tuner = add_adapters(model, lora, names)
        self._output = output_layer_of(model)
        self._log_probs = SelectedLogProbs(self._output, scale)
        self._hidden_size = int(self._output.weight.shape[1])  # now, because ZeRO-3 empties the weight
        self._bucket = bucket
        self._merged = merged
        self._lora_layers = {
            stack: {name: m for name, m in stack.named_modules() if isinstance(m, LoraLayer)}
            for stack in self.stacks(model)
        }
        self._check_targets(names[0])
        self._adapters = {name: self._find_parameters(name) for name in names}
        # Adapters share their initial values, so that a target starts equal to its source.
        with torch.no_grad():
            for name, parameter in self._adapters[names[0]].items():
                for other in names[1:]:
                    self._adapters[other][name].copy_(parameter)
        if merged:
            self._tuner.disable_adapter_layers()  # for good: adapters act through the merged weights
        if model.is_gradient_checkpointing:
            model.disable_input_require_grads()  # peft's
            model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": self._checkpoint_contexts})
            model.disable_input_require_grads()  # or layers below the first adapted one would be recomputed as well
        # peft freezes all but the active adapter, and all of them while adapters are disabled.
        for parameters in self._adapters.values():
            for parameter in parameters.values():
                parameter.requires_grad_(True)
        self._active = ""  # none, as peft's form of the first choice is another: layers would be compiled for both

    def compile_layers(self, backend: str = "inductor") -> None:
        """From now on, each transformer layer is compiled when it first runs, for any number of states and positions.

        Layers of one kind share what is compiled: for each adapter two graphs with gradients (the first layer's input
        has none) and one without, and as many again for a state alone. Parameters and their names stay.

        Raises:
            ModelError: there is no C++ compiler, or no layer that transformers marks as such.
        """
        if shutil.which(os.environ.get("CXX", "g++")) is None:
            raise ModelError(
                "model.compile needs a C++ compiler (g++, or the one named in CXX); install it, or set model.compile "
                "to false"
            )
        modules = [module for stack in self.stacks(self._model) for module in stack.modules()]
        layers = [module for module in modules if isinstance(module, GradientCheckpointingLayer)]
        if not layers:
            kind = self._model.config.model_type
            raise ModelError(f"model.compile finds no transformer layers in this {kind}; set it to false")
        for layer in layers:
            layer.forward = torch.compile(  # type: ignore[call-overload]  # which lacks recompile_limit
                layer.forward, dynamic=True, backend=backend, recompile_limit=_MOST_GRAPHS
            )

    @property
    @override
    def hidden_size(self) -> int:
        return self._hidden_size

    @property
    @override
    def module(self) -> nn.Module:
        return nn.ModuleList([self._peft, self._log_probs])

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._output.weight.device

    @staticmethod
    @abstractmethod
    def packed(model: PreTrainedModel, queries: Sequence[TokenisedQuery], bucket: int) -> P:
        """Queries in this kind of model's layout, padded to a multiple of `bucket` positions."""

    @staticmethod
    @abstractmethod
    def hidden(model: PreTrainedModel, packed: P, run: RunStack) -> Tensor:
        """The last layer's hidden states (B, S, H) at the positions of `packed.ids_BS`."""

    @staticmethod
    def stacks(model: PreTrainedModel) -> Sequence[nn.Module]:
        """The parts of the model that `hidden` runs."""
        return [decoder_of(model)]

    @staticmethod
    def scale(model: PreTrainedModel) -> float:
        """The factor that multiplies hidden states on their way to the output layer."""
        return 1.0

    @override
    def pack(self, queries: Sequence[TokenisedQuery]) -> P:
        states, row_B = distinct(queries)  # an action that changes nothing leads to the same state, with one goal
        packed = self.packed(self._model, states, self._bucket)
        _check_memory(packed, self._model.dtype, self.device)
        return packed.read_for(row_B).to(self.device)

    def _hidden(self, packed: P, adapter: str) -> Tensor:
        return self.hidden(self._model, packed, partial(self._run, adapter))

    @override
    def forward(self, packed: P, adapter: str = ACTOR) -> LMOutput:
        hidden_BSH = self._hidden(packed, adapter)
        hidden_XH = hidden_BSH.flatten(0, 1)  # X: all B * S positions
        scored_RH = hidden_XH[packed.scored_rows_R]
        log_prob_N = self._log_probs(scored_RH, packed.token_row_N, packed.token_id_N, packed.row_starts)
        padded_N = torch.cat([log_prob_N, log_prob_N.new_zeros(1)])
        return LMOutput(
            log_probs_BA=padded_N[packed.token_index_BAT].sum(dim=-1),  # Eq. 1
            action_hidden_BAH=hidden_XH[packed.last_row_BA],
            prompt_hidden_BH=hidden_XH[packed.prompt_row_B],
            actions_BA=packed.actions_BA,
            lengths_BA=packed.lengths_BA,
        )

    def _run(self, adapter: str, stack: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """The last hidden state of `stack` with the named adapter."""
        if self._merged:
            output = functional_call(stack, self._merged_weights(stack, adapter), args=(), kwargs=inputs)
        else:
            self._select(adapter)
            output = stack(**inputs)
        hidden: Tensor = output.last_hidden_state
        return hidden

    def _merged_weights(self, stack: nn.Module, adapter: str) -> dict[str, Tensor]:
        """W + s B A of every layer that has an adapter, by the name of its base weight."""
        layers = self._lora_layers[stack].items()
        return {f"{name}.base_layer.weight": _merged(layer, adapter) for name, layer in layers}

    @override
    def adapter_parameters(self, adapter: str) -> dict[str, nn.Parameter]:
        if adapter not in self._adapters:
            raise ModelError(f"this model has no adapter {adapter!r}; it has {', '.join(self._adapters)}")
        return dict(self._adapters[adapter])

    def _find_parameters(self, adapter: str) -> dict[str, nn.Parameter]:
        marker = f".{adapter}."
        return {n.replace(marker, "."): p for n, p in self._peft.named_parameters() if "lora_" in n and marker in n}

    @classmethod
    def _within_stacks(cls, model: PreTrainedModel, lora: LoraConfig) -> LoraConfig:
        """The same adapter without the layers that `hidden` does not run, as those of a part for images."""
        run = {module for stack in cls.stacks(model) for module in stack.modules()} | {output_layer_of(model)}
        others = [name for name, m in model.named_modules() if m not in run and len(list(m.parameters(recurse=False)))]
        # A pattern, since a list of names would also exclude layers whose paths end in one of them.
        return replace(lora, exclude_modules="|".join(map(re.escape, others))) if others else lora

    def _check_targets(self, adapter: str) -> None:
        """Refuse an adapter on the output layer or an embedding: its effect would be lost."""
        if isinstance(self._output, LoraLayer):
            raise ModelError(
                "model.lora.targets names the output layer, whose adapter engines ignore in prompt log-probabilities; "
                "use all-linear, which leaves it out, or name other layers"
            )
        layers = [layer for layers in self._lora_layers.values() for layer in layers.items()]
        others = [name for name, layer in layers if adapter not in layer.lora_A]
        if others:
            raise ModelError(f"adapters need linear layers, but model.lora.targets names {others}; remove them")
        unmergeable = [name for name, layer in layers if not hasattr(layer.get_base_layer(), "weight")]
        if self._merged and unmergeable:
            raise ModelError(
                f"model.lora.merged needs linear layers, but {unmergeable} hold several matrices each; set "
                "model.lora.merged to false"
            )

    @override
    def adapter_files(self, adapter: str = ACTOR, base_dtype: bool = False) -> dict[str, bytes]:
        settings = {**self._peft.peft_config[adapter].to_dict(), "inference_mode": True}
        plain = {name: sorted(value) if isinstance(value, set) else value for name, value in settings.items()}
        tensors = _on_cpu(self.adapter_parameters(adapter), self._model.dtype if base_dtype else torch.float32)
        return {
            CONFIG_NAME: json.dumps(plain, indent=2, sort_keys=True).encode(),
            SAFETENSORS_WEIGHTS_NAME: save(tensors, metadata={"format": "pt"}),
        }

    def _select(self, adapter: str) -> None:
        if adapter == self._active:
            return
        # peft freezes all but the active adapter; a joint backward over two adapters needs both to keep their gradient.
        parameters = [p for by_name in self._adapters.values() for p in by_name.values()]
        flags = [parameter.requires_grad for parameter in parameters]
        self._tuner.set_adapter(adapter)
        for parameter, flag in zip(parameters, flags, strict=True):
            parameter.requires_grad_(flag)
        self._active = adapter

    def _checkpoint_contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """For a checkpointed layer's first and second run, which need the same adapter."""
        return nullcontext(), self._selected(self._active)

    @contextmanager
    def _selected(self, adapter: str) -> Iterator[None]:
        # Not restored: the next recomputed layer needs the same adapter, and every forward selects its own.
        self._select(adapter)
        yield


def _check_memory(packed: Packed, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse what cannot fit, which a CPU's system would answer by killing the process.

    On a GPU a batch is halved where memory runs out, so only one that a single state would exceed is refused.

    Raises:
        ModelError: the attention masks alone take more than the memory that is free.
    """
    rows = 1 if device.type == "cuda" else len(packed.ids_BS)
    length = packed.ids_BS.shape[1]
    least = rows * length**2 * (2 + dtype.itemsize)  # boolean, its opposite, and in the model's type
    if least < _SMALL_BYTES:
        return
    free = free_bytes(str(device))
    if free is not None and least > free:
        most = packed.actions_BA.sum(dim=1).max()
        raise ModelError(
            f"a state's {most:,} actions are packed to {length:,} tokens with its prompt, and the attention masks of "
            f"{rows} in one pass alone take {least / 2**30:,.1f} GiB of the {free / 2**30:,.1f} GiB that are free on "
            f"{device}. Expected states with fewer or shorter actions (the tokens that actions begin with alike count "
            "once), or fewer states in one pass: algo.micro_batch_size when learning, env.copies when acting"
        )


def _on_cpu(parameters: Mapping[str, nn.Parameter], dtype: torch.dtype) -> dict[str, Tensor]:
    """Copies, moved in one piece, since every transfer waits for the GPU."""
    flat = torch.cat([parameter.detach().flatten() for parameter in parameters.values()]).to("cpu", dtype)
    parts = torch.split(flat, [parameter.numel() for parameter in parameters.values()])
    return {name: part.view(p.shape) for (name, p), part in zip(parameters.items(), parts, strict=True)}


def _merged(layer: Any, adapter: str) -> Tensor:
    """W + s B A, summed in the adapter's precision, with the base weight's type and orientation."""
    down, up = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
    left, right = (down.T, up.T) if layer.fan_in_fan_out else (up, down)
    weight = layer.base_layer.weight
    return torch.addmm(weight.to(up.dtype), left, right, alpha=layer.scaling[adapter]).to(weight.dtype)


def add_adapters(model: PreTrainedModel, lora: LoraConfig, names: Sequence[str]) -> tuple[PeftModel, LoraModel]:
    """Insert LoRA layers into `model`, in place.

    Raises:
        ModelError: no layer fits `lora.target_modules`.
    """
    lora._register_custom_module({nn.Linear: LoraLinear})
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


def decoder_of(model: PreTrainedModel) -> nn.Module:
    """The model without its output layer."""
    decoder: nn.Module = model.get_decoder()
    return decoder


def output_layer_of(model: PreTrainedModel) -> nn.Linear:
    """The layer from hidden states to logits."""
    layer: nn.Linear = model.get_output_embeddings()
    return layer
