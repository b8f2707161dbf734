"""Encoder-decoder language models behind the packed forward: the T5 family.

The encoder reads the prompt once, and the decoder reads all actions as one sequence `[start a1 | start a2 | ...]`
under a block-diagonal causal mask. T5's position bias depends on the distance of two positions alone, so a block is
decoded as if it stood alone, without any change to the model, and each layer projects the encoder's states to keys and
values once for all actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from peft import LoraConfig
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from sacglam.errors import ModelError
from sacglam.models.base import ACTOR
from sacglam.models.lora_lm import AdaptedLM, as_taken, decoder_of, output_layer_of
from sacglam.models.packing import PackedSeq2Seq, attention_mask, pack_seq2seq
from sacglam.models.tokens import TokenisedQuery

T5_FAMILY = ("t5", "mt5", "umt5")
"""Model types whose decoder knows positions by their distance alone. T5 1.1, Flan-T5, UL2 and Flan-UL2 are `t5`."""
PROMPT_LAYERS = ("encoder.", "EncDecAttention.k.", "EncDecAttention.v.")
"""In the names of the weights that prompts meet: the encoder's, and the decoder's for keys and values of its states."""


class Seq2SeqLM(AdaptedLM[PackedSeq2Seq]):
    """A `PackedLM` over T5, Flan-T5, mT5, UMT5 and UL2.

    The critic reads the decoder's last hidden state at an action's last token. The state alone (`prompt_hidden_BH`)
    is its first position: the start token, which has read the prompt through cross-attention and no action.
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
        """See `AdaptedLM`."""
        self._encoder, self._decoder = encoder_of(model), decoder_of(model)
        self._start = start_token(model.config)
        stacks = [self._encoder, self._decoder]
        super().__init__(model, lora, adapters, stacks, bucket=bucket, merged=merged, scale=logit_scale(model))

    def pack(self, queries: Sequence[TokenisedQuery]) -> PackedSeq2Seq:
        """For each query its prompt, and one sequence of its actions, on the model's device."""
        return pack_seq2seq(queries, self._start, self._bucket).to(self.device)

    def _hidden(self, packed: PackedSeq2Seq, adapter: str) -> Tensor:
        encoded_BPH = self._run(self._encoder, adapter, encoder_inputs(packed))
        return self._run(self._decoder, adapter, seq2seq_decoder_inputs(self._model, packed, encoded_BPH))


def encoder_of(model: PreTrainedModel) -> nn.Module:
    """The part that reads the prompt."""
    encoder: nn.Module = model.get_encoder()
    return encoder


def start_token(config: PreTrainedConfig) -> int:
    """The token that decoding begins with: in the T5 family the padding token.

    Raises:
        ModelError: the configuration names none.
    """
    if config.pad_token_id is None:
        raise ModelError(f"expected pad_token_id in this {config.model_type}'s config.json: its decoder begins with it")
    return int(config.pad_token_id)


def encoder_inputs(packed: PackedSeq2Seq) -> dict[str, Any]:
    """The prompts as keyword arguments of a transformers encoder."""
    return {"input_ids": packed.prompt_ids_BP, "attention_mask": packed.prompt_mask_BP}


def seq2seq_decoder_inputs(model: PreTrainedModel, packed: PackedSeq2Seq, encoded_BPH: Tensor) -> dict[str, Any]:
    """The actions, and the prompts as the encoder read them, as keyword arguments of a transformers decoder."""
    return {
        "input_ids": packed.ids_BS,
        "attention_mask": as_taken(attention_mask(packed.segment_BS), model),
        "encoder_hidden_states": encoded_BPH,
        "encoder_attention_mask": packed.prompt_mask_BP,
        "use_cache": False,
    }


@torch.no_grad()
def logit_scale(model: PreTrainedModel) -> float:
    """What hidden states are multiplied by on their way to the output layer.

    T5 shares the output layer's weights with the embedding and multiplies by d_model ** -0.5. Its successors do not,
    and each of the three implementations says so in another way: hence a look at what the output layer is given.
    """
    inputs: list[Tensor] = []
    hidden: list[Tensor] = []
    handles = [
        output_layer_of(model).register_forward_pre_hook(lambda module, args: inputs.append(args[0])),
        decoder_of(model).register_forward_hook(lambda module, args, output: hidden.append(output.last_hidden_state)),
    ]
    token = torch.tensor([[start_token(model.config)]], device=model.device)
    try:
        model(input_ids=token, decoder_input_ids=token, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    plain, scaled = 1.0, float(model.config.d_model) ** -0.5
    return plain if torch.equal(inputs[0], hidden[0]) else scaled
