"""Compiled layers: the scores and gradients of plain ones, in a few graphs, whatever the shapes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from sacglam.build import build_model
from sacglam.config import load, parse
from sacglam.errors import ConfigError, ModelError
from sacglam.models.packed_lm import ACTOR, PackedLM
from sacglam.models.tokens import TokenisedQuery
from tests.unit.models.reference import adapted, assert_same_gradients, gradients, ragged, shake, tiny_lm, tiny_model

STATES = [ragged(1, (3, 1, 5)), ragged(2, (2, 4)), ragged(3, (1, 6, 2, 2))]
"""Batches of different numbers of states, actions and tokens; one of a single state would have a graph of its own."""


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compiles even where the environment switches it off; leaves nothing compiled behind."""
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(disable=False):
        yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "checkpointing", "graphs"),
    # One for layers whose input has no gradient and one for those above, in the encoder as in the decoder.
    [("llama", True, 2), pytest.param("flan", False, 4, marks=pytest.mark.nightly)],
)
@pytest.mark.usefixtures("compiling")
def test_compiled_layers_score_and_learn_as_plain_ones_in_few_graphs(
    name: str, checkpointing: bool, graphs: int
) -> None:
    plain, compiled = tiny_lm(name), adapted(name, tiny_model(name), checkpointing=checkpointing)
    shake(compiled, [ACTOR])
    compiled.compile_layers("aot_eager")
    assert list(compiled.adapter_bytes()) == list(plain.adapter_bytes())
    for states in STATES:
        expected_BA, got_BA = (_learnt(lm, states) for lm in (plain, compiled))
        torch.testing.assert_close(got_BA, expected_BA, atol=1e-5, rtol=0)
        assert_same_gradients(gradients(compiled), gradients(plain), 1e-5)
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == graphs


def _learnt(lm: PackedLM, states: list[TokenisedQuery]) -> Tensor:
    output = lm.forward(lm.pack(states))
    (output.log_probs_BA.exp() * output.lengths_BA).sum().backward()
    return output.log_probs_BA.detach()


def test_without_a_compiler_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ModelError, match=r"model\.compile needs a C\+\+ compiler"):
        build_model(load(None, ["model.compile=true", "device=cpu"]))


def test_weights_that_are_gathered_within_layers_are_refused() -> None:
    ranks = {"engines": {"count": 1}, "learners": {"count": 2, "zero_stage": 3}}
    with pytest.raises(ConfigError, match=r"zero_stage 3 and model\.compile exclude each other"):
        parse({**ranks, "model": {"compile": True}})
