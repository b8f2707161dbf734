"""What goes through the model is counted, and comes out as without counting."""

from __future__ import annotations

import torch

from sacglam.clock import PhaseClock
from sacglam.models.base import ACTOR
from sacglam.tools.profile.counting import Pass, Tally
from sacglam.tools.profile.recorder import Recorder
from tests.unit.models.reference import ragged, tiny_lm


def test_passes_are_listed_with_their_phase_and_the_output_is_the_models() -> None:
    lm, queries, clock = tiny_lm("llama", bucket=16), ragged(), PhaseClock()
    recorder = Recorder(lambda: None)
    clock.watch(recorder)
    tally = Tally(recorder)
    counting = tally.observe(lm)
    packed = counting.pack(queries)
    with clock.phase("scoring"), torch.no_grad():
        first = counting.forward(packed, ACTOR)
    with clock.phase("forward"):
        counting.forward(counting.pack(queries[:1]), ACTOR)
    assert tally.lm is lm
    assert packed.tokens == lm.pack(queries).tokens
    assert tally.passes == [
        Pass("scoring", False, queries, packed.tokens),
        Pass("forward", True, queries[:1], lm.pack(queries[:1]).tokens),
    ]
    assert torch.equal(first.log_probs_BA, lm.forward(lm.pack(queries)).log_probs_BA)


def test_the_rest_is_the_models_own() -> None:
    lm = tiny_lm("llama")
    counting = Tally(Recorder(lambda: None)).observe(lm)
    assert counting.hidden_size == lm.hidden_size
    assert counting.adapter_parameters(ACTOR).keys() == lm.adapter_parameters(ACTOR).keys()
    assert counting.adapter_files(ACTOR) == lm.adapter_files(ACTOR)
    assert list(counting.module.state_dict()) == list(lm.module.state_dict())
