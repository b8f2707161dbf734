"""What the algorithms need of a language model, whatever its architecture."""

from __future__ import annotations

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
    """What one packed forward pass gives for B states with up to A actions each."""

    log_probs_BA: Tensor  # sum over tokens of log p, float32 (Eq. 1); 0 on padding
    action_hidden_BAH: Tensor  # last hidden state at each action's last token
    prompt_hidden_BH: Tensor  # last hidden state that has read the prompt and no action
    actions_BA: Tensor  # bool: which actions exist
    lengths_BA: Tensor  # tokens of each action; 1 on padding


class PackedLM(Protocol):
    """A language model with LoRA adapters that scores all actions of a state in one pass.

    Decoder-only models implement it in `causal.py`, encoder-decoders in `seq2seq.py`, both on `adapted.py`. Nothing
    above this line looks inside a packed batch.
    """

    @property
    def hidden_size(self) -> int:
        """H, the width of the hidden states."""

    @property
    def module(self) -> nn.Module:
        """All its weights, for what shares them out over ranks; it is never called as a whole."""

    def pack(self, queries: Sequence[TokenisedQuery]) -> Any:
        """Queries as tensors on the model's device, in this model's own layout.

        All that may be asked of it is `tokens`: the positions a forward pass computes, padding included.
        """

    def forward(self, packed: Any, adapter: str) -> LMOutput:
        """Score the packed states with the named adapter."""

    def adapter_parameters(self, adapter: str) -> dict[str, nn.Parameter]:
        """The LoRA weights of one adapter by a name that does not contain the adapter's."""

    def adapter_files(self, adapter: str = ACTOR) -> dict[str, bytes]:
        """`adapter` as the files of a peft folder, by name: the form that peft and vLLM load."""
