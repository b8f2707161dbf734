"""Encoder-decoder language models behind the packed forward: the T5 family.

The encoder reads the prompt once, and the decoder reads all actions as one sequence `[start a1 | start a2 | ...]`
under a block-diagonal causal mask. T5's position bias depends only on the distance of two positions, so a block is
decoded as if it were alone, without any change to the model, and each layer projects the encoder's states to keys and
values once for all actions.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from peft import LoraConfig
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from typing_extensions import override

from sacglam.errors import ModelError
from sacglam.models.base import ACTOR
from sacglam.models.lora_lm import LoraLM, decoder_of, mask_for, output_layer_of
from sacglam.models.packing import PackedSeq2Seq, pack_seq2seq
from sacglam.models.tokens import TokenisedQuery

T5_FAMILY = ("t5", "mt5", "umt5")
"""Model types whose decoder only knows distances of positions. T5 1.1, Flan-T5, UL2 and Flan-UL2 are `t5`."""
PROMPT_LAYERS = ("encoder.", "EncDecAttention.k.", "EncDecAttention.v.")
"""Parts of the names of weights that read the prompt: the encoder's, and the decoder's for its keys and values."""


class Seq2SeqLM(LoraLM[PackedSeq2Seq]):
    """A `PackedLM` over T5, Flan-T5, mT5, UMT5 and UL2.

    The critic reads the decoder's last hidden state at an action's last token. `prompt_hidden_BH` is that of the first
    position: the start token, which has read the prompt through cross-attention and no action.
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
        """See `LoraLM`."""
        self._encoder = encoder_of(model)
        self._start = start_token(model.config)
        self.scale = logit_scale(model)
        super().__init__(model, lora, adapters, bucket=bucket, merged=merged)

    @override
    def pack(self, queries: Sequence[TokenisedQuery]) -> PackedSeq2Seq:
        return pack_seq2seq(queries, self._start, self._bucket).to(self.device)

    @override
    def _stacks(self) -> Sequence[nn.Module]:
        return [self._encoder, self._decoder]

    @override
    def _hidden(self, packed: PackedSeq2Seq, adapter: str) -> Tensor:
        encoded_BPH = self._run(self._encoder, adapter, encoder_inputs(packed))
        return self._run(self._decoder, adapter, seq2seq_decoder_inputs(self._model, packed, encoded_BPH))


def encoder_of(model: PreTrainedModel) -> nn.Module:
    """The part that reads the prompt."""
    encoder: nn.Module = model.get_encoder()
    return encoder


def start_token(config: PreTrainedConfig) -> int:
    """The token that decoding starts with: in the T5 family the padding token.

    Raises:
        ModelError: the configuration has none.
    """
    if config.pad_token_id is None:
        raise ModelError(
            f"expected pad_token_id in this {config.model_type}'s config.json, with which its decoder starts"
        )
    return int(config.pad_token_id)


def encoder_inputs(packed: PackedSeq2Seq) -> dict[str, Any]:
    """The prompts as keyword arguments of a transformers encoder."""
    return {"input_ids": packed.prompt_ids_BP, "attention_mask": packed.prompt_mask_BP}


def seq2seq_decoder_inputs(model: PreTrainedModel, packed: PackedSeq2Seq, encoded_BPH: Tensor) -> dict[str, Any]:
    """The actions and the encoded prompts as keyword arguments of a transformers decoder."""
    return {
        "input_ids": packed.ids_BS,
        "attention_mask": mask_for(model, packed),
        "encoder_hidden_states": encoded_BPH,
        "encoder_attention_mask": packed.prompt_mask_BP,
        "use_cache": False,
    }


@torch.no_grad()
def logit_scale(model: PreTrainedModel) -> float:
    """The factor that multiplies hidden states on their way to the output layer.

    T5 shares the output layer's weights with the embedding and multiplies by d_model ** -0.5. Its successors do not,
    and each of the three implementations states this differently, so the output layer's input is observed.
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
