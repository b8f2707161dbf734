"""The benchmarks' reference computes what the packed forward computes, ragged batches and gradients included."""

from __future__ import annotations

import pytest
import torch

from benchmarks.separate import SeparateLM
from sacglam.models.base import ACTOR
from tests.unit.models.reference import assert_same_gradients, gradients, lora, ragged, shake, tiny_lm, tiny_model


@pytest.mark.parametrize("lean", [False, True])
def test_packed_and_separate_agree(lean: bool) -> None:
    packed = tiny_lm("qwen2", bucket=32)
    separate = SeparateLM(tiny_model("qwen2"), lora(), [ACTOR], lean=lean)
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
