"""Adapters on the last layers only: what they compute, where the backward pass ends, and what is saved."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from sacglam.config import LoraSettings, ModelConfig, parse
from sacglam.errors import ConfigError, ModelError
from sacglam.models.base import ACTOR
from sacglam.models.causal import CausalLM
from sacglam.models.loading import _checkpoint_layers, lora_config
from sacglam.models.lora_lm import decoder_of
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
    **options: Any,
) -> CausalLM:
    """A tiny model of four layers with adapters on the last of them."""
    base = deep_model(name)
    if checkpointing:
        _checkpoint_layers(base)
    settings = ModelConfig(name=name, lora=LoraSettings(rank=4, alpha=8.0, layers=adapted))
    lm = CausalLM(base, lora_config(settings, base.config), adapters, **options)
    shake(lm, adapters)
    return lm


def layers_of(lm: CausalLM) -> nn.ModuleList:
    [found] = [child for child in decoder_of(lm._model).children() if isinstance(child, nn.ModuleList)]
    return found


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("name", [*DECODERS, "gpt2"])
def test_the_last_layers_alone_are_adapted_and_the_saved_adapter_loads_in_plain_peft(
    name: str, merged: bool, tmp_path: Path
) -> None:
    lm = lean_lm(name, merged=merged)
    numbers = {int(found[1]) for n in lm.adapter_parameters(ACTOR) if (found := re.search(r"\.(\d+)\.", n))}
    assert numbers == {2, 3}
    for file, content in lm.adapter_files().items():
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
    every, named = (lean_lm(adapted=LAYERS), CausalLM(deep_model(), lora_config(ModelConfig(), deep_model().config)))
    assert every.adapter_parameters(ACTOR).keys() == named.adapter_parameters(ACTOR).keys()


def test_layers_that_are_not_there() -> None:
    with pytest.raises(ModelError, match=r"model\.lora\.layers of at most 4.*'llama' has; got 5"):
        lean_lm(adapted=5)
    with pytest.raises(ModelError, match=r"model\.lora\.layers is for decoder-only models; in 'builtin' \(t5\)"):
        lora_config(ModelConfig(lora=LoraSettings(layers=1)), CONFIGS["flan"]())
    with pytest.raises(ConfigError, match=r"model\.lora\.layers needs model\.lora\.targets all-linear.*'\.\*proj'"):
        parse({"model": {"lora": {"targets": ".*proj", "layers": 1}}})
