"""Adapters on the last layers only, and what is kept of the layers below: the same scores and gradients."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from sacglam import memory
from sacglam.config import load
from sacglam.config.sections import LoraSettings, ModelConfig
from sacglam.errors import ModelError
from sacglam.models.layers import FrozenLayers
from sacglam.models.loading import lora_config
from sacglam.models.packed_lm import ACTOR, PackedLM
from sacglam.models.packing import distinct
from sacglam.models.packing_check import check_frozen, keep_states
from tests.unit.models.reference import (
    CONFIGS,
    DECODERS,
    adapters_of,
    alone,
    assert_same_gradients,
    gradients,
    ragged,
    sac_batch,
    sac_loss,
    shake,
    tiny_actor_critic,
    tiny_model,
)

LAYERS = 4
pytestmark = pytest.mark.filterwarnings("ignore:fan_in_fan_out")


def deep_model(name: str = "llama", **options: Any) -> PreTrainedModel:
    return tiny_model(name, shape={"num_hidden_layers": LAYERS, "layer_types": ["full_attention"] * LAYERS}, **options)


def lean_lm(
    name: str = "llama",
    adapted: int = 2,
    adapters: tuple[str, ...] = (ACTOR,),
    checkpointing: bool = False,
    merged: bool = False,
    bucket: int = 1,
) -> PackedLM:
    """A tiny model of four layers with adapters on the last of them."""
    base = deep_model(name)
    chosen = ModelConfig(name=name, lora=LoraSettings(rank=4, alpha=8.0, layers=adapted))
    lm = PackedLM(base, lora_config(chosen, base.config), adapters, merged, checkpointing)
    lm.bucket = bucket
    shake(lm, adapters)
    return lm


def layers_of(lm: PackedLM) -> nn.ModuleList:
    [found] = [child for child in lm._model.get_decoder().children() if isinstance(child, nn.ModuleList)]
    return found


@pytest.mark.parametrize(("name", "merged"), [(name, n % 2 == 0) for n, name in enumerate([*DECODERS, "gpt2"])])
def test_the_last_layers_alone_are_adapted_and_the_saved_adapter_loads_in_plain_peft(
    name: str, merged: bool, tmp_path: Path
) -> None:
    lm = lean_lm(name, merged=merged)
    numbers = {int(found[1]) for n in lm.adapter_parameters(ACTOR) if (found := re.search(r"\.(\d+)\.", n))}
    assert numbers == {2, 3}
    for file, content in lm.adapter_bytes().items():
        (tmp_path / file).write_bytes(content)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["layers_to_transform"] == [2, 3]
    loaded = PeftModel.from_pretrained(deep_model(name), str(tmp_path), is_trainable=True)
    query = ragged(counts=[3])[0]
    expected_A, got_A = alone(name, loaded, query), lm.forward(lm.pack([query])).log_probs_BA[0]
    torch.testing.assert_close(got_A, expected_A, atol=1e-5, rtol=0)
    got_A[1].backward()
    expected_A[1].backward()
    expected = {n.replace(".default.", "."): p.grad for n, p in loaded.named_parameters() if p.grad is not None}
    assert_same_gradients(gradients(lm), expected)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_nothing_below_the_first_adapted_layer_has_a_graph_or_runs_again(checkpointing: bool) -> None:
    names = adapters_of("shared")
    lm = lean_lm(adapters=tuple(names), checkpointing=checkpointing)
    inputs: list[list[Tensor]] = [[] for _ in range(LAYERS)]
    for layer, seen in zip(layers_of(lm), inputs, strict=True):
        layer.mlp.register_forward_pre_hook(lambda module, args, seen=seen: seen.append(args[0]))
    loss = sac_loss(tiny_actor_critic(lm, "shared")[0], sac_batch(lm)[0], 0.1)
    passes = [len(seen) for seen in inputs]
    assert [any(x.requires_grad for x in seen) for seen in inputs] == [False, False, True, True]
    loss.backward()
    again = [len(seen) - before for seen, before in zip(inputs, passes, strict=True)]
    assert again == ([0, 0, 1, 1] if checkpointing else [0] * LAYERS)
    assert len(gradients(lm)) == len(lm.adapter_parameters(ACTOR))


def test_all_layers_by_their_number_are_all_layers() -> None:
    every, named = (lean_lm(adapted=LAYERS), PackedLM(deep_model(), lora_config(ModelConfig(), deep_model().config)))
    assert every.adapter_parameters(ACTOR).keys() == named.adapter_parameters(ACTOR).keys()


def test_layers_that_are_not_there() -> None:
    with pytest.raises(ModelError, match=r"model\.lora\.layers of at most 4.*'llama' has; got 5"):
        lean_lm(adapted=5)
    with pytest.raises(ModelError, match=r"model\.lora\.layers is for decoder-only models; in 'builtin' \(t5\)"):
        lora_config(ModelConfig(lora=LoraSettings(layers=1)), CONFIGS["flan"]())


def keeping(limit_bytes: int = 1 << 20, **options: Any) -> PackedLM:
    lm = lean_lm(**options)
    lm.frozen = FrozenLayers(lm.architecture, limit_bytes)
    check_frozen(lm, "tiny")
    return lm


@pytest.mark.parametrize(
    ("name", "options"),
    [("llama", {"merged": True}), ("qwen3", {"checkpointing": True}), ("gemma", {"bucket": 32}), ("gpt2", {})],
)
def test_losses_and_gradients_are_those_of_a_pass_through_all_layers(name: str, options: dict[str, Any]) -> None:
    names = tuple(adapters_of("shared"))
    found = []
    for lm in (lean_lm(name, adapters=names, **options), keeping(name=name, adapters=names, **options)):
        model = tiny_actor_critic(lm, "shared")[0]
        sac_loss(model, sac_batch(lm)[0], 0.1).backward()
        cold = gradients(lm)
        for parameter in lm.adapter_parameters(ACTOR).values():
            parameter.grad = None
        loss = sac_loss(model, sac_batch(lm)[0], 0.1)
        loss.backward()
        assert all(torch.equal(cold[n], gradient) for n, gradient in gradients(lm).items())
        found.append((loss.item(), gradients(lm)))
    (plain, plain_gradients), (kept, kept_gradients) = found
    assert kept == pytest.approx(plain, rel=1e-6)
    assert_same_gradients(kept_gradients, plain_gradients, 1e-5)


def test_a_state_alone_has_the_very_same_scores() -> None:
    plain, kept = lean_lm(), keeping()
    for query in ragged():
        scores = [lm.forward(lm.pack([query])).log_probs_BA for lm in (plain, kept)]
        assert torch.equal(*scores)


def test_what_is_kept_is_not_computed_again() -> None:
    lm, queries = keeping(), ragged()
    before = lm.forward(lm.pack(queries)).log_probs_BA
    with torch.no_grad():
        layers_of(lm)[1].mlp.down_proj.weight.zero_()
    assert torch.equal(lm.forward(lm.pack(queries)).log_probs_BA, before)
    lm.frozen = FrozenLayers(lm.architecture, 1 << 20)
    assert (lm.forward(lm.pack(queries)).log_probs_BA - before).abs().max() > 1e-3


STATES = [query for seed in range(4) for query in ragged(seed)]


def kept_of(lm: PackedLM, batch: Sequence[int]) -> list[Tensor]:
    """The frozen layers' output at each state's tokens, as a packed batch has it."""
    queries = [STATES[i] for i in batch]
    packed, (_, row_B) = lm.pack(queries), distinct(queries)
    assert packed.frozen_BSH is not None
    return [row_SH[row_SH.any(dim=-1)] for row_SH in packed.frozen_BSH[row_B]]  # padding is zero


@pytest.fixture(scope="module")
def small() -> tuple[PackedLM, list[Tensor]]:
    lm = keeping()
    return lm, [kept_of(lm, [i])[0] for i in range(len(STATES))]


@settings(deadline=None, max_examples=20)
@given(
    batches=st.lists(st.lists(st.integers(0, len(STATES) - 1), min_size=1, max_size=6), min_size=1, max_size=6),
    limit=st.integers(0, 20_000),
)
def test_memory_is_bounded_and_neither_the_limit_nor_the_batch_changes_a_bit(
    small: tuple[PackedLM, list[Tensor]], batches: list[list[int]], limit: int
) -> None:
    lm, alone_I = small
    lm.frozen = FrozenLayers(lm.architecture, limit)
    assert lm.frozen is not None
    for batch in batches:
        assert all(torch.equal(got, alone_I[i]) for got, i in zip(kept_of(lm, batch), batch, strict=True))
        held = [tensor.untyped_storage().nbytes() for tensor in lm.frozen.kept.values()]
        assert sum(held) <= lm.frozen.kept_bytes <= limit


def test_the_state_used_least_recently_is_dropped_first() -> None:
    lm = keeping()
    sizes = [tensor.nbytes + 8 * len(tensor) for tensor in kept_of(lm, [0, 1, 2])]  # the key has 8 bytes a token
    lm.frozen = FrozenLayers(lm.architecture, sum(sizes) - 1)
    before = [*kept_of(lm, [0, 1]), *kept_of(lm, [0, 2])]
    with torch.no_grad():
        layers_of(lm)[0].mlp.down_proj.weight.zero_()
    after = kept_of(lm, [0, 2, 1])
    assert torch.equal(after[0], before[0])
    assert torch.equal(after[1], before[3])
    assert not torch.equal(after[2], before[1])


def test_a_decoder_whose_layers_read_more_than_their_input_keeps_no_states() -> None:
    lm, early = lean_lm(), list[Tensor]()
    first, *_, last = layers_of(lm)
    first.mlp.register_forward_hook(lambda module, args, output: early.append(output))
    last.register_forward_hook(lambda module, args, output: output + early.pop())
    with pytest.warns(UserWarning, match=r"model 'odd' are not kept for reuse: .*without its frozen layers.*read more"):
        keep_states(lm, "odd")
    assert lm.frozen is None


def test_rounding_that_depends_on_the_batch_is_no_reason_to_refuse() -> None:
    lm = lean_lm()
    first, *_ = layers_of(lm)
    first.register_forward_hook(lambda module, args, output: output * (1 + 1e-3 * (len(output) > 1)))
    keep_states(lm, "odd")
    assert lm.frozen is not None


def test_keeping_what_no_layer_computes() -> None:
    lm = lean_lm(adapted=LAYERS)
    with pytest.warns(UserWarning, match="all of its layers are adapted"):
        keep_states(lm, "tiny")
    assert lm.frozen is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["device=cpu", "model.lora.layers=1"], True),
        (["device=cpu"], False),
        (["device=cuda", "model.lora.layers=1"], False),
        (["device=cpu", "model.lora.layers=1", "learners.count=2"], True),
        (["device=cpu", "model.lora.layers=1", "learners={count: 2, zero_stage: 3}"], False),
    ],
)
def test_states_are_kept_on_a_cpu_below_the_last_layers(settings: list[str], expected: bool) -> None:
    assert load(None, settings).keeps_states == expected


@pytest.mark.parametrize(("free", "expected"), [(40 << 30, 2 << 30), (4 << 30, 1 << 30)])
def test_states_take_a_quarter_of_the_free_memory(free: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: free)
    assert memory.kept_states_bytes() == expected
