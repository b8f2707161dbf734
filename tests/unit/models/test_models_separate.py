"""The benchmarks' references compute what the packed forward computes, ragged batches and gradients included."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from benchmarks.separate import SeparateLM
from benchmarks.separate_seq2seq import SeparateSeq2SeqLM
from sacglam.models.packed_lm import ACTOR, PackedLM
from tests.unit.models.reference import assert_same_gradients, gradients, lora, ragged, shake, tiny_lm, tiny_model

REFERENCES: dict[str, tuple[str, Callable[[PreTrainedModel], PackedLM]]] = {
    "plain": ("qwen2", lambda model: SeparateLM(model, lora(), [ACTOR], lean=False)),
    "lean": ("qwen2", lambda model: SeparateLM(model, lora(), [ACTOR], lean=True)),
    "encoded for each action": ("t5", lambda model: SeparateSeq2SeqLM(model, lora("t5"), [ACTOR], once=False)),
    "encoded once": ("flan", lambda model: SeparateSeq2SeqLM(model, lora("flan"), [ACTOR], once=True)),
}


@pytest.mark.parametrize("reference", REFERENCES)
def test_packed_and_separate_agree(reference: str) -> None:
    name, build = REFERENCES[reference]
    packed = tiny_lm(name, bucket=32)
    separate = build(tiny_model(name))
    shake(separate, [ACTOR])
    queries = ragged()
    got, expected = (lm.forward(lm.pack(queries)) for lm in (separate, packed))
    mask_BA = expected.actions_BA
    assert torch.equal(got.actions_BA, mask_BA)
    assert torch.equal(got.lengths_BA, expected.lengths_BA)
    torch.testing.assert_close(got.log_probs_BA, expected.log_probs_BA, atol=1e-5, rtol=0)
    torch.testing.assert_close(got.action_hidden_BAH[mask_BA], expected.action_hidden_BAH[mask_BA], atol=2e-5, rtol=0)
    torch.testing.assert_close(got.prompt_hidden_BH, expected.prompt_hidden_BH, atol=2e-5, rtol=0)
    for output in (got, expected):
        output.log_probs_BA.square().sum().backward()
    assert_same_gradients(gradients(separate), gradients(packed))
