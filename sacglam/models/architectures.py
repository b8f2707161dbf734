"""The two kinds of language model, and how each packs queries and reads them.

A decoder-only model reads one sequence `[prompt | actions]`. An encoder-decoder of the T5 family reads the prompt once
in its encoder, and its decoder reads all actions as `[start a1 | start a2 | ...]` under a block-diagonal causal mask.
T5's position bias depends only on the distance of two positions, so a block is decoded as if it were alone, without any
change to the model, and each layer projects the encoder's states to keys and values once for all actions.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel
from typing_extensions import override

from sacglam.errors import ModelError
from sacglam.models.packing import Packed, additive, attention_mask, pack_causal, pack_seq2seq
from sacglam.models.tokens import TokenisedQuery

T5_FAMILY = ("t5", "mt5", "umt5")
"""Model types whose decoder only sees the distances between positions. T5 1.1, Flan-T5, UL2 and Flan-UL2 are `t5`."""


class Architecture(ABC):
    """How one kind of language model packs queries and reads them."""

    auto: ClassVar[type[AutoModelForCausalLM] | type[AutoModelForSeq2SeqLM]]
    """transformers' class that loads it."""
    task: ClassVar[Literal["CAUSAL_LM", "SEQ_2_SEQ_LM"]]
    """peft's name for this kind."""
    prompt_eos: ClassVar[bool]
    """Whether a prompt ends in the end-of-sequence token."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    @abstractmethod
    def pack(self, queries: Sequence[TokenisedQuery], bucket: int = 1) -> Packed:
        """Queries in this kind's layout, on the CPU, padded to a multiple of `bucket` positions."""

    @abstractmethod
    def hidden(self, packed: Packed) -> Tensor:
        """The last layer's hidden states (B, S, H) at the positions of `packed.ids_BS`."""

    @property
    def stacks(self) -> Sequence[nn.Module]:
        """The parts of the model that `hidden` runs."""
        return [self.model.get_decoder()]

    def logit_scale(self) -> float:
        """The factor that multiplies hidden states on their way to the output layer."""
        return 1.0


class DecoderOnly(Architecture):
    """Any transformers decoder whose attention respects the given mask and positions.

    There is no list of such models: `sacglam.models.packing_check.check_packing` tries each one.
    """

    auto, task, prompt_eos = AutoModelForCausalLM, "CAUSAL_LM", False

    @override
    def pack(self, queries: Sequence[TokenisedQuery], bucket: int = 1) -> Packed:
        return pack_causal(queries, bucket)

    @override
    def hidden(self, packed: Packed) -> Tensor:
        mask = additive(attention_mask(packed.end_BS), self.model.dtype)
        inputs = {"input_ids": packed.ids_BS, "position_ids": packed.positions_BS, "attention_mask": mask}
        return self.model.get_decoder()(**inputs, use_cache=False).last_hidden_state


class EncoderDecoder(Architecture):
    """T5, Flan-T5, mT5, UMT5 and UL2.

    The critic reads the decoder's last hidden state at an action's last token. `prompt_hidden_BH` is that of the first
    position: the start token, which has read the prompt through cross-attention and no action.
    """

    # T5 has never read an input without a final </s>. Our choice: the authors' later code leaves it out.
    auto, task, prompt_eos = AutoModelForSeq2SeqLM, "SEQ_2_SEQ_LM", True

    @override
    def pack(self, queries: Sequence[TokenisedQuery], bucket: int = 1) -> Packed:
        return pack_seq2seq(queries, start_token(self.model.config), bucket)

    @override
    def hidden(self, packed: Packed) -> Tensor:
        ids_BP, mask_BP, ids_BS = packed.prompt_ids_BP, packed.prompt_mask_BP, packed.ids_BS
        assert ids_BP is not None
        assert mask_BP is not None

        def prompt_mask(queries: Tensor) -> Tensor:
            # In four dimensions: with only two, transformers asks the device whether the mask hides anything.
            return additive(mask_BP[:, None, None].expand(-1, 1, queries.shape[1], -1), self.model.dtype)

        encoded = self.model.get_encoder()(input_ids=ids_BP, attention_mask=prompt_mask(ids_BP))
        return self.model.get_decoder()(
            input_ids=ids_BS,
            attention_mask=additive(attention_mask(packed.end_BS), self.model.dtype),
            encoder_hidden_states=encoded.last_hidden_state,
            encoder_attention_mask=prompt_mask(ids_BS),
            use_cache=False,
        ).last_hidden_state

    @property
    @override
    def stacks(self) -> Sequence[nn.Module]:
        return [self.model.get_encoder(), self.model.get_decoder()]

    @override
    @torch.no_grad()
    def logit_scale(self) -> float:
        """T5 shares the output layer's weights with the embedding and multiplies by d_model ** -0.5. Its successors do
        not, and each of the three implementations says so in its own way, so the output layer's input is observed.
        """
        inputs: list[Tensor] = []
        hidden: list[Tensor] = []
        head, decoder = self.model.get_output_embeddings(), self.model.get_decoder()
        token = torch.tensor([[start_token(self.model.config)]], device=self.model.device)
        with (
            head.register_forward_pre_hook(lambda module, args: inputs.append(args[0])),
            decoder.register_forward_hook(lambda module, args, output: hidden.append(output.last_hidden_state)),
        ):
            self.model(input_ids=token, decoder_input_ids=token, use_cache=False)
        return 1.0 if torch.equal(inputs[0], hidden[0]) else float(self.model.config.d_model) ** -0.5


def architecture_of(config: PreTrainedConfig) -> type[Architecture]:
    """The kind of model that a transformers configuration describes."""
    return EncoderDecoder if config.is_encoder_decoder else DecoderOnly


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
