"""The layers below the first adapted one: they never change, so what they compute is kept from visit to visit."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from sacglam.errors import ModelError
from sacglam.models.tokens import TokenisedQuery


class FrozenLayers:
    """The frozen layers of a decoder, and their results for the states seen last, within a limit of memory.

    Each state goes through them alone. Its hidden states are then the same to the last bit whichever states share its
    batch and whatever is still kept, so that a run resumes exactly, with an empty cache.
    """

    def __init__(self, layers: Sequence[nn.Module], limit_bytes: int) -> None:
        """`layers` are all of the decoder.

        Raises:
            ModelError: the first of them is adapted.
        """
        adapted = [any(isinstance(module, LoraLayer) for module in layer.modules()) for layer in layers]
        first = adapted.index(True)
        if first == 0:
            raise ModelError(
                "model.cache_mib keeps what the layers below the first adapted one compute, and all are adapted; lower "
                "model.lora.layers, or set model.cache_mib to 0"
            )
        self._below, self._above = layers[:first], layers[first:]
        self._limit = limit_bytes
        self.kept: OrderedDict[tuple[bytes, ...], Tensor] = OrderedDict()  # the state used last at the end
        self.kept_bytes = 0

    @torch.no_grad()
    def outputs(self, queries: Sequence[TokenisedQuery], run: Callable[[TokenisedQuery], object]) -> list[Tensor]:
        """What the first adapted layer reads of each query's tokens (T, H): prompt, then actions.

        `run` takes a query alone through the decoder.
        """
        found = []
        for query in queries:
            key = (query.prompt.tobytes(), *(action.tobytes() for action in query.actions))
            state = self.kept.get(key)
            if state is None:
                state = self.kept[key] = self._output(partial(run, query))
                self.kept_bytes += _size(key, state)
            self.kept.move_to_end(key)
            found.append(state)
            while self.kept_bytes > self._limit:
                self.kept_bytes -= _size(*self.kept.popitem(last=False))
        return found

    def _output(self, run: Callable[[], object]) -> Tensor:
        """What the first adapted layer reads in `run`, from which all layers above are left out."""
        inputs: list[Tensor] = []

        def skip(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            inputs.append(hidden_states)
            return hidden_states

        with replaced(self._above, skip):
            run()
        return inputs[0][0]

    @contextmanager
    def skipped(self, output_BSH: Tensor) -> Iterator[None]:
        """A context in which a pass through the decoder computes none of the frozen layers, but takes this output."""
        with replaced(self._below, lambda hidden_states, *args, **kwargs: output_BSH):
            yield


@contextmanager
def replaced(layers: Iterable[nn.Module], forward: Callable[..., Tensor]) -> Iterator[None]:
    """A context in which `forward` takes the place of the layers' own."""
    own = [(layer, layer.forward) for layer in layers]
    for layer, _ in own:
        layer.forward = forward
    try:
        yield
    finally:
        for layer, before in own:
            layer.forward = before


def _size(key: tuple[bytes, ...], state: Tensor) -> int:
    return sum(map(len, key)) + state.nbytes
