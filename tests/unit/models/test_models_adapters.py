"""Adapters around a model of either architecture: selection, checkpointed layers, saving, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    CTRLConfig,
    Gemma3Config,
    Gemma3TextConfig,
    MixtralConfig,
    PreTrainedModel,
    SiglipVisionConfig,
)

from sacglam.errors import ModelError
from sacglam.models.packed_lm import ACTOR, CRITIC, PackedLM
from sacglam.models.tokens import TokenisedQuery
from tests.unit.models.reference import (
    BOTH,
    Backbone,
    adapted,
    adapters_of,
    alone,
    assert_same_gradients,
    gradients,
    ragged,
    sac_batch,
    sac_loss,
    shake,
    tiny_actor_critic,
    tiny_lm,
    tiny_model,
)


@pytest.mark.parametrize("lm_name", BOTH)
def test_all_adapters_begin_alike_and_as_the_base_model(lm_name: str) -> None:
    names = [ACTOR, CRITIC, "critic_target"]
    lm = adapted(lm_name, tiny_model(lm_name), names)
    query = ragged(counts=[1])[0]
    [expected] = alone(lm_name, tiny_model(lm_name), query).detach()
    first = lm.adapter_parameters(ACTOR)
    for name in names:
        assert lm.forward(lm.pack([query]), name).log_probs_BA.item() == pytest.approx(expected.item(), abs=1e-5)
        own = lm.adapter_parameters(name)
        assert own.keys() == first.keys()
        assert all(torch.equal(own[k], first[k]) for k in own)
        assert name == ACTOR or all(own[k] is not first[k] for k in own)
    assert any((p != 0).any() for p in first.values())  # A is random; B is zero


@pytest.mark.parametrize(("lm_name", "merged"), [("llama", True), ("flan", False)])
def test_a_forward_uses_the_adapter_it_names(lm_name: str, merged: bool) -> None:
    lm = tiny_lm(lm_name, [ACTOR, CRITIC], merged=merged)
    packed = lm.pack(ragged())
    actor, critic, again = (lm.forward(packed, name).log_probs_BA for name in (ACTOR, CRITIC, ACTOR))
    assert torch.equal(actor, again)
    assert (actor - critic).abs().max() > 0.1
    # And both graphs live on: a joint backward reaches both adapters.
    (again.sum() + critic.sum()).backward()
    assert len(gradients(lm, ACTOR)) == len(gradients(lm, CRITIC)) == len(lm.adapter_parameters(ACTOR))


@pytest.mark.parametrize(("lm_name", "merged"), [("llama", False), ("flan", True)])
def test_selecting_an_adapter_thaws_nothing(lm_name: str, merged: bool) -> None:
    lm = tiny_lm(lm_name, [ACTOR, CRITIC], merged=merged)
    for parameter in lm.adapter_parameters(CRITIC).values():
        parameter.requires_grad_(False)
    packed = lm.pack(ragged())
    for name in (CRITIC, ACTOR, CRITIC):
        lm.forward(packed, name)
        assert all(p.requires_grad for p in lm.adapter_parameters(ACTOR).values())
        assert not any(p.requires_grad for p in lm.adapter_parameters(CRITIC).values())


class _Calls:
    """Counts how often the MLP of layer 0 begins to run; when recomputed, it stops as soon as all is there."""

    def __init__(self, mlp: nn.Module) -> None:
        self.count = 0
        mlp.register_forward_pre_hook(self._hook)

    def _hook(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.count += 1


def _first_mlps(model: PreTrainedModel) -> list[nn.Module]:
    """Of the decoder, and of the encoder if there is one."""
    if model.config.is_encoder_decoder:
        return [model.get_decoder().block[0].layer[-1], model.get_encoder().block[0].layer[-1]]
    return [model.get_decoder().layers[0].mlp]


@pytest.mark.parametrize(
    ("lm_name", "backbone", "merged"),
    [
        ("llama", "shared", False),
        ("llama", "separate", True),
        ("flan", "frozen", False),
        ("t5", "separate", True),
        ("umt5", "separate", False),
    ],
)
def test_gradient_checkpointing_gives_the_same_gradients(lm_name: str, backbone: Backbone, merged: bool) -> None:
    names = adapters_of(backbone)
    outcomes = []
    for checkpointing in (False, True):
        base = tiny_model(lm_name)
        calls = [_Calls(mlp) for mlp in _first_mlps(base)]
        lm = adapted(lm_name, base, names, merged=merged, checkpointing=checkpointing)
        shake(lm, names)
        model, heads, _ = tiny_actor_critic(lm, backbone)
        batch = sac_batch(lm)[0]
        loss = sac_loss(model, batch, 0.1)
        forward = [c.count for c in calls]
        loss.backward()
        passes_with_gradient = 2 if backbone == "separate" else 1
        again = [c.count - before for c, before in zip(calls, forward, strict=True)]
        assert again == [passes_with_gradient if checkpointing else 0] * len(calls)
        adapters = [ACTOR, CRITIC] if backbone == "separate" else [ACTOR]
        outcomes.append((loss, [gradients(lm, a) for a in adapters], [p.grad for p in heads.parameters()]))
    (loss, lora_plain, heads_plain), (loss_again, lora_again, heads_again) = outcomes
    assert loss.item() == pytest.approx(loss_again.item(), rel=1e-6)
    for recomputed, plain in zip(lora_again, lora_plain, strict=True):
        assert_same_gradients(recomputed, plain, 1e-5)
    torch.testing.assert_close(heads_again, heads_plain)


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
@pytest.mark.parametrize("lm_name", ["gpt2", "flan", "opt"])
def test_checkpointing_switches_no_dropout_on(lm_name: str) -> None:
    base = tiny_model(lm_name)
    drops = any(isinstance(module, nn.Dropout) and module.p > 0 for module in base.modules())
    assert drops or base.config.dropout > 0
    lm = adapted(lm_name, base, checkpointing=True)
    packed = lm.pack(ragged())
    with torch.no_grad():
        assert torch.equal(lm.forward(packed).log_probs_BA, lm.forward(packed).log_probs_BA)
    adapter = lm.adapter_parameters(ACTOR).values()
    first, second = (torch.autograd.grad(lm.forward(packed).log_probs_BA.sum(), [*adapter]) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_checkpointing_that_could_not_recompute_anything_is_refused() -> None:
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "dff": 24}
    base = AutoModelForCausalLM.from_config(CTRLConfig(vocab_size=32, **shape))
    with pytest.raises(ModelError, match="cannot be recomputed"):
        PackedLM(base, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"), checkpointing=True)


@pytest.mark.parametrize("lm_name", ["mistral", "t5", "flan"])
def test_all_linear_leaves_the_output_layer_out(lm_name: str) -> None:
    assert not any("lm_head" in name for name in tiny_lm(lm_name).adapter_parameters(ACTOR))


def test_layers_of_several_matrices_are_not_merged() -> None:
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    mixture = MixtralConfig(vocab_size=32, num_key_value_heads=1, **shape)
    config = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    lms = []
    for merged in (False, True):
        torch.manual_seed(0)
        lms.append(PackedLM(AutoModelForCausalLM.from_config(mixture), config, merged=merged))
        shake(lms[-1], [ACTOR])
    plain, merged = (lm.forward(lm.pack([TokenisedQuery(np.arange(5), (np.arange(3),))])) for lm in lms)
    torch.testing.assert_close(merged.log_probs_BA, plain.log_probs_BA, atol=1e-5, rtol=0)


def test_a_part_for_images_gets_no_adapter() -> None:
    """It never runs, so its adapter would have no gradient, and its Adam no moments to resume with."""
    shape = {"intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = Gemma3TextConfig(vocab_size=64, hidden_size=16, num_key_value_heads=1, head_dim=8, **shape)
    images = SiglipVisionConfig(hidden_size=16, image_size=28, patch_size=14, **shape)
    both = Gemma3Config(text_config=text, vision_config=images, mm_tokens_per_image=4)
    config = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    lm = PackedLM(AutoModelForCausalLM.from_config(both), config)
    query = TokenisedQuery(np.arange(5), (np.arange(1, 3), np.arange(4)))
    lm.forward(lm.pack([query])).log_probs_BA.sum().backward()
    parameters = lm.adapter_parameters(ACTOR)
    assert len(parameters) == 2 * 7
    assert all(parameter.grad is not None for parameter in parameters.values())


def test_targets_that_do_not_exist() -> None:
    config = LoraConfig(r=2, target_modules=["nowhere"], task_type="CAUSAL_LM")
    with pytest.raises(ModelError, match=r"none of the model's layers can have an adapter.*nowhere"):
        PackedLM(tiny_model("llama"), config)


@pytest.mark.parametrize(("lm_name", "merged"), [("qwen2", True), ("flan", False)])
def test_adapter_bytes_are_a_peft_folder_with_the_same_scores(lm_name: str, merged: bool, tmp_path: Path) -> None:
    lm = tiny_lm(lm_name, [ACTOR, CRITIC], merged=merged)
    files = lm.adapter_bytes()
    assert sorted(files) == ["adapter_config.json", "adapter_model.safetensors"]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    loaded = PeftModel.from_pretrained(tiny_model(lm_name), str(tmp_path))
    [query] = ragged(counts=[1])
    [expected] = alone(lm_name, loaded, query).detach()
    for name, same in ((ACTOR, True), (CRITIC, False)):
        gap = abs(lm.forward(lm.pack([query]), name).log_probs_BA.item() - expected.item())
        assert (gap < 1e-5) == same


@pytest.mark.parametrize("lm_name", BOTH)
def test_adapter_bytes_are_those_that_peft_writes(lm_name: str, tmp_path: Path) -> None:
    lm = tiny_lm(lm_name, [ACTOR, CRITIC])
    lm._peft.save_pretrained(str(tmp_path), selected_adapters=[ACTOR], save_embedding_layers=False)
    files = lm.adapter_bytes()
    texts = (files["adapter_config.json"], (tmp_path / "adapter_config.json").read_text())
    own, theirs = map(json.loads, texts)
    for settings in (own, theirs):
        settings["target_modules"].sort()  # a set, in any order
    assert own == theirs
    assert files["adapter_model.safetensors"] == (tmp_path / "adapter_model.safetensors").read_bytes()


@pytest.mark.parametrize("lm_name", BOTH)
def test_adapter_bytes_in_the_models_type_are_the_rounded_weights(lm_name: str) -> None:
    lm = adapted(lm_name, tiny_model(lm_name, dtype=torch.bfloat16))
    shake(lm, [ACTOR])
    whole, rounded = (
        load(files["adapter_model.safetensors"]) for files in (lm.adapter_bytes(), lm.adapter_bytes(base_dtype=True))
    )
    assert whole.keys() == rounded.keys()
    for name, tensor in whole.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(rounded[name], tensor.bfloat16())
    assert tiny_lm(lm_name).adapter_bytes(base_dtype=True) == tiny_lm(lm_name).adapter_bytes()


@pytest.mark.parametrize("lm_name", BOTH)
def test_a_bfloat16_model_has_float32_adapters_and_scores(lm_name: str) -> None:
    lm = adapted(lm_name, tiny_model(lm_name, dtype=torch.bfloat16))
    shake(lm, [ACTOR])
    exact = tiny_lm(lm_name)
    queries = ragged()
    output = lm.forward(lm.pack(queries))
    assert output.log_probs_BA.dtype == torch.float32
    assert output.action_hidden_BAH.dtype == torch.bfloat16
    assert {p.dtype for p in lm.adapter_parameters(ACTOR).values()} == {torch.float32}
    # Three digits of precision in two layers.
    torch.testing.assert_close(output.log_probs_BA, exact.forward(exact.pack(queries)).log_probs_BA, atol=0.3, rtol=0)
    output.log_probs_BA.sum().backward()
    exact.forward(exact.pack(queries)).log_probs_BA.sum().backward()
    assert_same_gradients(gradients(lm), gradients(exact), 0.1)


def test_the_output_layers_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny_lm("llama")
    packed = lm.pack(ragged())
    whole = lm.forward(packed).log_probs_BA
    whole.sum().backward()
    expected = {name: gradient.clone() for name, gradient in gradients(lm).items()}
    for parameter in lm.adapter_parameters(ACTOR).values():
        parameter.grad = None
    monkeypatch.setattr("sacglam.models.logprobs._CHUNK_ELEMENTS", 200)  # three rows of 61
    chunked = lm.forward(packed).log_probs_BA
    chunked.sum().backward()
    torch.testing.assert_close(chunked, whole, atol=1e-5, rtol=0)
    assert_same_gradients(gradients(lm), expected, 1e-5)


def test_a_prompt_and_an_action_of_one_token() -> None:
    lm = tiny_lm("llama")
    output = lm.forward(lm.pack([TokenisedQuery(np.array([1]), (np.array([2]),))]))
    logits_V = output.prompt_hidden_BH[0] @ tiny_model("llama").get_output_embeddings().weight.T
    assert output.log_probs_BA.item() == pytest.approx(torch.log_softmax(logits_V, dim=-1)[2].item(), abs=1e-5)
