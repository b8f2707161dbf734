"""What the algorithms need of a language model, independent of its architecture."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from sacglam.models.tokens import TokenisedQuery

ACTOR = "default"  # peft's own name for the first adapter, so that the exported folder is a plain peft adapter
CRITIC = "critic"


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


class PackedLM(Protocol):
    """A language model with LoRA adapters that scores all actions of a state in one pass.

    `LoraLM` implements it, for decoder-only models in `causal.py` and for encoder-decoders in `seq2seq.py`. Only they
    look inside a packed batch, and `sacglam profile`, which counts its positions.
    """

    @property
    def hidden_size(self) -> int:
        """H, the width of the hidden states."""

    @property
    def module(self) -> nn.Module:
        """All its weights, for sharding over ranks; it is never called as a whole."""

    def pack(self, queries: Sequence[TokenisedQuery]) -> Any:
        """Queries as tensors on the model's device, in the model's own layout."""

    def forward(self, packed: Any, adapter: str) -> LMOutput:
        """Score the packed states with the named adapter."""

    def adapter_parameters(self, adapter: str) -> dict[str, nn.Parameter]:
        """The LoRA weights of one adapter by their names in a saved peft adapter, which leave out the adapter's."""

    def adapter_files(self, adapter: str = ACTOR, base_dtype: bool = False) -> dict[str, bytes]:
        """`adapter` as the files of a peft folder, by name, as peft and vLLM load it.

        Weights are float32 or, with `base_dtype`, of the base model's type, in which vLLM computes with them.
        """
