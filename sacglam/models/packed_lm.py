"""A frozen language model with LoRA adapters that scores all actions of a state in one pass."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from peft import LoraConfig
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from sacglam.errors import ModelError
from sacglam.memory import free_bytes
from sacglam.models.architectures import Architecture, architecture_of
from sacglam.models.layers import FrozenLayers, last_mlp_of, only_at
from sacglam.models.logprobs import SelectedLogProbs
from sacglam.models.lora import adapter_bytes, adapter_parameters, add_adapters
from sacglam.models.packing import Packed, distinct
from sacglam.models.tokens import TokenisedQuery

ACTOR = "default"  # peft's own name for the first adapter, so that the exported folder is a plain peft adapter
CRITIC = "critic"
BUCKETS = {"cuda": 8}  # packed lengths are multiples of this, which suits matrix units; elsewhere of 1
_SMALL_BYTES = 64 << 20
"""Masks smaller than this are not compared with the free memory."""


def target_of(adapter: str) -> str:
    """The name of the adapter that holds the exponential moving average of `adapter`."""
    return f"{adapter}_target"


@dataclass(frozen=True)
class LMOutput:
    """The result of one packed forward pass over B states with up to A actions each."""

    log_probs_BA: Tensor  # sum over tokens of log p, float32 (Eq. 1); 0 on padding
    action_hidden_BAH: Tensor  # last layer's hidden state at each action's last token
    prompt_hidden_BH: Tensor  # last layer's hidden state that has read the prompt and no action
    actions_BA: Tensor  # bool: which actions exist
    lengths_BA: Tensor  # tokens of each action; 1 on padding

    def detached(self) -> "LMOutput":
        """The same without gradient."""
        return LMOutput(**{name: tensor.detach() for name, tensor in vars(self).items()})


class PackedLM:
    """A language model with LoRA adapters, and what a pass through it may skip.

    Its `architecture` packs and runs it; only `sacglam profile` also looks inside a packed batch.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        lora: LoraConfig,
        adapters: Iterable[str] = (ACTOR,),
        merged: bool = False,
        checkpointing: bool = False,
    ) -> None:
        """Freeze `model` and add one LoRA adapter for each name in `adapters`; initially all equal the base model.

        `merged` chooses `MergedLinear`. With `checkpointing`, layers are recomputed in the backward pass.
        """
        self.architecture = architecture_of(model.config)(model)
        self.frozen: FrozenLayers | None = None  # set to cache their output, if `check_frozen` allows it
        self._model = model
        scale, names = self.architecture.logit_scale(), list(adapters)
        self._peft = add_adapters(model, _within_stacks(self.architecture, lora), names, merged)
        self._adapters = {name: adapter_parameters(self._peft, name) for name in names}
        self._lora_layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
        self._output = model.get_output_embeddings()
        self._log_probs = SelectedLogProbs(self._output, scale)
        self.hidden_size = int(self._output.weight.shape[1])
        """H, the width of the hidden states."""
        self.bucket = BUCKETS.get(model.device.type, 1)
        # A checkpointed layer's second run could not know which positions its first one left out.
        self._last_mlp = None if checkpointing else last_mlp_of(model)
        if checkpointing:  # not transformers' own, which needs training mode and so dropout
            twice = partial(
                checkpoint, use_reentrant=False, preserve_rng_state=False, context_fn=self._checkpoint_contexts
            )
            layers = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
            if not layers:
                raise ModelError("its layers cannot be recomputed; set model.gradient_checkpointing to false")
            for layer in layers:
                layer.forward = partial(twice, layer.forward)
        self._active = ""

    @property
    def module(self) -> nn.Module:
        """All its weights, for sharding over ranks; it is never called as a whole."""
        return nn.ModuleList([self._peft, self._log_probs])

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._output.weight.device

    def pack(self, queries: Sequence[TokenisedQuery]) -> Packed:
        """Queries as tensors on the model's device, in its architecture's layout."""
        states, row_B = distinct(queries)  # many repeat: an action that changes nothing leads to the same state
        packed = self.architecture.pack(states, self.bucket)
        _check_memory(packed, self._model.dtype, self.device)
        packed = packed.read_for(row_B).to(self.device)
        return self.frozen.added_to(packed, states) if self.frozen else packed

    def forward(self, packed: Packed, adapter: str = ACTOR) -> LMOutput:
        """Score the packed states with the named adapter."""
        self._select(adapter)
        with ExitStack() as left_out:
            if self._last_mlp:
                left_out.enter_context(only_at(self._last_mlp, packed.read_rows_K))
            if self.frozen and packed.frozen_BSH is not None:
                left_out.enter_context(self.frozen.skipped(packed.frozen_BSH))
            hidden_BSH = self.architecture.hidden(packed)
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

    def adapter_parameters(self, adapter: str) -> dict[str, nn.Parameter]:
        """The LoRA weights of one adapter by their names in a saved peft adapter, without the adapter's name."""
        return dict(self._adapters[adapter])

    def adapter_bytes(self, base_dtype: bool = False) -> dict[str, bytes]:
        """The actor's adapter as the files of a peft folder, by name.

        Weights are float32 or, with `base_dtype`, of the base model's type, in which vLLM computes with them.
        """
        dtype = self._model.dtype if base_dtype else torch.float32
        return adapter_bytes(self._peft.peft_config[ACTOR], self._adapters[ACTOR], dtype)

    def _select(self, adapter: str) -> None:
        if adapter == self._active:
            return
        # peft's own way would freeze the others, but a joint backward pass over two adapters must train both.
        for layer in self._lora_layers:
            layer._active_adapter = adapter
        self._active = adapter

    def _checkpoint_contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """For a checkpointed layer's first and second run, which need the same adapter."""
        return nullcontext(), self._selected(self._active)

    @contextmanager
    def _selected(self, adapter: str) -> Iterator[None]:
        # Not restored: the next layer to be recomputed needs the same adapter, and every forward selects its own.
        self._select(adapter)
        yield


def _within_stacks(architecture: Architecture, lora: LoraConfig) -> LoraConfig:
    """The same adapter without the layers that the architecture does not run, such as those of an image encoder."""
    model = architecture.model
    run = {module for stack in architecture.stacks for module in stack.modules()} | {model.get_output_embeddings()}
    others = [name for name, m in model.named_modules() if m not in run and len(list(m.parameters(recurse=False)))]
    # A pattern, since a list of names would also exclude layers whose paths end in one of them.
    return replace(lora, exclude_modules="|".join(map(re.escape, others))) if others else lora


def _check_memory(packed: Packed, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse (`ModelError`) attention masks that take more than the free memory; on a CPU the system would kill us.

    On a GPU a batch is halved when memory runs out, so only a state that is too large by itself is refused.
    """
    rows = 1 if device.type == "cuda" else len(packed.ids_BS)
    length = packed.ids_BS.shape[1]
    least = rows * length**2 * (2 + dtype.itemsize)  # a boolean mask, its negation, and one in the model's type
    if least < _SMALL_BYTES:
        return
    free = free_bytes(str(device))
    if least > free:
        most = packed.actions_BA.sum(dim=1).max()
        raise ModelError(
            f"a state's {most:,} actions are packed to {length:,} tokens with its prompt, and the attention masks of "
            f"{rows} in one pass alone take {least / 2**30:,.1f} GiB of the {free / 2**30:,.1f} GiB that are free on "
            f"{device}. Expected states with fewer or shorter actions (shared leading tokens count "
            "once), or fewer states in one pass: algo.micro_batch_size when learning, env.copies when acting"
        )
