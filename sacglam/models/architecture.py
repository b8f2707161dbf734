"""The two kinds of language model, and what differs between them outside of their packed forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedConfig

from sacglam.models.causal import CausalLM
from sacglam.models.seq2seq import Seq2SeqLM


@dataclass(frozen=True)
class Architecture:
    """A kind of language model."""

    auto: type[AutoModelForCausalLM] | type[AutoModelForSeq2SeqLM]
    """transformers' class that loads it."""
    lm: type[CausalLM] | type[Seq2SeqLM]
    """What packs it."""
    task: Literal["CAUSAL_LM", "SEQ_2_SEQ_LM"]
    """peft's name of the kind."""
    prompt_eos: bool
    """Whether a prompt ends in the end-of-sequence token."""


DECODER_ONLY = Architecture(AutoModelForCausalLM, CausalLM, "CAUSAL_LM", prompt_eos=False)
# T5 has never read an input that did not end in </s>. Chosen here: the authors' later code leaves it out.
ENCODER_DECODER = Architecture(AutoModelForSeq2SeqLM, Seq2SeqLM, "SEQ_2_SEQ_LM", prompt_eos=True)


def architecture_of(config: PreTrainedConfig) -> Architecture:
    """The kind of model that a transformers configuration describes."""
    return ENCODER_DECODER if config.is_encoder_decoder else DECODER_ONLY
