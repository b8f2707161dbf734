"""Skips frozen layers at states seen before, and the last MLP at positions whose output is not read."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from sacglam.errors import ModelError
from sacglam.models.architectures import Architecture
from sacglam.models.packing import Packed
from sacglam.models.tokens import TokenisedQuery


def layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """The decoder's layers in order; empty if they are not in one list."""
    number = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    lists = [m for m in model.get_decoder().children() if isinstance(m, nn.ModuleList) and len(m) == number]
    return list(lists[0]) if len(lists) == 1 else []


def last_mlp_of(model: PreTrainedModel) -> nn.Module | None:
    """The last layer's MLP, if it treats positions independently: all its weights are in linear layers."""
    mlp = getattr(next(reversed(layers_of(model)), None), "mlp", None)
    if not isinstance(mlp, nn.Module):
        return None
    owners = [m for m in mlp.modules() if next(m.parameters(recurse=False), None) is not None]
    plain = all(isinstance(m, nn.Linear) for m in owners) and len(signature(mlp.forward).parameters) == 1
    return mlp if plain else None


@contextmanager
def only_at(mlp: nn.Module, rows_K: Tensor) -> Iterator[None]:
    """A context in which `mlp` computes only these of its input's (B * S) positions, and returns 0 at all others.

    Of the last MLP's output, only the prompt's last position and the action tokens are read: less than half.
    """
    whole = mlp.forward

    def forward(hidden_BSH: Tensor) -> Tensor:
        hidden_XH = hidden_BSH.flatten(0, 1)
        output_1KH = whole(hidden_XH[rows_K][None])
        return torch.zeros_like(hidden_XH).index_copy(0, rows_K, output_1KH[0]).view_as(hidden_BSH)

    with _replaced([mlp], forward):
        yield


class FrozenLayers:
    """The frozen layers of a decoder, and their results for the most recent states, within a memory limit.

    Each state passes through them alone, so its hidden states are the same to the last bit whatever else is in the
    batch or the cache, and a run resumes exactly with an empty cache.
    """

    def __init__(self, architecture: Architecture, limit_bytes: int) -> None:
        """Keeps at most `limit_bytes`.

        Raises:
            ModelError: the decoder's first layer is adapted, or its layers are not in one list.
        """
        layers = layers_of(architecture.model)
        if not layers:
            raise ModelError("its decoder has no list of all its layers")
        adapted = [any(isinstance(module, LoraLayer) for module in layer.modules()) for layer in layers]
        first = adapted.index(True)
        if first == 0:
            raise ModelError("all of its layers are adapted; lower model.lora.layers")
        self._architecture = architecture
        self._below, self._above = layers[:first], layers[first:]
        self._limit = limit_bytes
        self.kept: OrderedDict[tuple[bytes, ...], Tensor] = OrderedDict()  # the most recently used last
        self.kept_bytes = 0

    def added_to(self, packed: Packed, queries: Sequence[TokenisedQuery]) -> Packed:
        """`packed`, whose rows are `queries`, with the input of the first adapted layer."""
        outputs = [self._output(query) for query in queries]
        frozen_BSH = outputs[0].new_zeros(*packed.ids_BS.shape, outputs[0].shape[-1])
        for row_SH, output_TH in zip(frozen_BSH, outputs, strict=True):
            row_SH[: len(output_TH)] = output_TH
        return replace(packed, frozen_BSH=frozen_BSH)

    def _output(self, query: TokenisedQuery) -> Tensor:
        """The first adapted layer's input (T, H) for a query's tokens: prompt, then actions."""
        key = (query.prompt.tobytes(), *(action.tobytes() for action in query.actions))
        state = self.kept.get(key)
        if state is None:
            state = self.kept[key] = self._computed(query)
            self.kept_bytes += _size(key, state)
        self.kept.move_to_end(key)
        while self.kept_bytes > self._limit:
            self.kept_bytes -= _size(*self.kept.popitem(last=False))
        return state

    @torch.no_grad()
    def _computed(self, query: TokenisedQuery) -> Tensor:
        """`_output`, from a pass of this query alone that skips all layers above."""
        inputs: list[Tensor] = []

        def skip(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            inputs.append(hidden_states)
            return hidden_states

        with _replaced(self._above, skip):
            self._architecture.hidden(self._architecture.pack([query]).to(self._architecture.model.device))
        return inputs[0][0]

    @contextmanager
    def skipped(self, output_BSH: Tensor) -> Iterator[None]:
        """A context in which a pass through the decoder skips the frozen layers and takes this as their output."""
        with _replaced(self._below, lambda hidden_states, *args, **kwargs: output_BSH):
            yield


@contextmanager
def _replaced(layers: Iterable[nn.Module], forward: Callable[..., Tensor]) -> Iterator[None]:
    """A context in which `forward` replaces the layers' own."""
    with ExitStack() as replaced:
        for layer in layers:
            replaced.callback(setattr, layer, "forward", layer.forward)
            layer.forward = forward
        yield


def _size(key: tuple[bytes, ...], state: Tensor) -> int:
    return sum(map(len, key)) + state.nbytes
