"""Encoder-decoder language models behind the packed forward: the T5 family.

The encoder reads the prompt once, and the decoder reads all actions as one sequence `[start a1 | start a2 | ...]`
under a block-diagonal causal mask. T5's position bias depends only on the distance of two positions, so a block is
decoded as if it were alone, without any change to the model, and each layer projects the encoder's states to keys and
values once for all actions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from typing_extensions import override

from sacglam.errors import ModelError
from sacglam.models.lora_lm import LoraLM, RunStack, decoder_of, output_layer_of
from sacglam.models.packing import PackedSeq2Seq, additive, attention_mask, pack_seq2seq
from sacglam.models.tokens import TokenisedQuery

T5_FAMILY = ("t5", "mt5", "umt5")
"""Model types whose decoder only knows distances of positions. T5 1.1, Flan-T5, UL2 and Flan-UL2 are `t5`."""


class Seq2SeqLM(LoraLM[PackedSeq2Seq]):
    """A `PackedLM` over T5, Flan-T5, mT5, UMT5 and UL2.

    The critic reads the decoder's last hidden state at an action's last token. `prompt_hidden_BH` is that of the first
    position: the start token, which has read the prompt through cross-attention and no action.
    """

    @staticmethod
    @override
    def packed(model: PreTrainedModel, queries: Sequence[TokenisedQuery], bucket: int) -> PackedSeq2Seq:
        return pack_seq2seq(queries, start_token(model.config), bucket)

    @staticmethod
    @override
    def hidden(model: PreTrainedModel, packed: PackedSeq2Seq, run: RunStack) -> Tensor:
        def prompt_mask(queries: Tensor) -> Tensor:
            # In four dimensions: of a mask in two, transformers asks the device whether it hides anything.
            return additive(packed.prompt_mask_BP[:, None, None].expand(-1, 1, queries.shape[1], -1), model.dtype)

        prompt_ids_BP, ids_BS = packed.prompt_ids_BP, packed.ids_BS
        encoded_BPH = run(encoder_of(model), {"input_ids": prompt_ids_BP, "attention_mask": prompt_mask(prompt_ids_BP)})
        mask = additive(attention_mask(packed.end_BS), model.dtype)
        inputs = {"input_ids": ids_BS, "attention_mask": mask, "use_cache": False}
        read = {"encoder_hidden_states": encoded_BPH, "encoder_attention_mask": prompt_mask(ids_BS)}
        return run(decoder_of(model), {**inputs, **read})

    @staticmethod
    @override
    def stacks(model: PreTrainedModel) -> Sequence[nn.Module]:
        return [encoder_of(model), decoder_of(model)]

    @staticmethod
    @override
    def scale(model: PreTrainedModel) -> float:
        return logit_scale(model)


def encoder_of(model: PreTrainedModel) -> nn.Module:
    """The part that reads the prompt."""
    encoder: nn.Module = model.get_encoder()
    return encoder


def start_token(config: PreTrainedConfig) -> int:
    """The token that decoding starts with: `decoder_start_token_id`, in most of the T5 family the padding token.

    Raises:
        ModelError: the configuration has neither.
    """
    start = config.to_dict().get("decoder_start_token_id")
    if start is None and config.pad_token_id is None:
        raise ModelError(
            f"expected decoder_start_token_id in this {config.model_type}'s config.json, with which its decoder starts"
        )
    return int(config.pad_token_id if start is None else start)


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
