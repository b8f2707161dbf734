"""What is loaded, and what is refused: not found, damaged, or not to be packed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BambaConfig,
    BartConfig,
    BloomConfig,
    CohereConfig,
    DogeConfig,
    FalconConfig,
    FalconH1Config,
    Gemma2Config,
    Gemma3TextConfig,
    GPTJConfig,
    GPTNeoConfig,
    GraniteConfig,
    JambaConfig,
    Lfm2Config,
    LlamaConfig,
    Mamba2Config,
    MambaConfig,
    MistralConfig,
    MptConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    RecurrentGemmaConfig,
    RwkvConfig,
    SwitchTransformersConfig,
    T5GemmaConfig,
)

from sacglam.config.sections import LoraSettings, ModelConfig
from sacglam.errors import ModelError
from sacglam.models.architectures import DecoderOnly, EncoderDecoder, architecture_of
from sacglam.models.loading import (
    ANY_LENGTH,
    BUILTIN,
    _max_tokens,
    load_model,
    load_shape,
    lora_config,
    merges,
)
from sacglam.models.packed_lm import ACTOR, PackedLM
from sacglam.models.packing_check import check_packing
from sacglam.models.tokens import TokenisedQuery
from tests.unit.models.reference import CONFIGS, PACKED, SEQ2SEQ, alone, ragged, tiny_model

CPU = torch.device("cpu")
SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
GPT: dict[str, Any] = {"vocab_size": 512, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
SMALL: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}
MAMBA: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}
STATEFUL: dict[str, PreTrainedConfig] = {
    "mamba": MambaConfig(**SMALL, state_size=8),
    "mamba2": Mamba2Config(**SMALL, state_size=8, num_heads=8, head_dim=8, n_groups=1),
    "rwkv": RwkvConfig(**SMALL, context_length=128),
    "jamba": JambaConfig(
        **SHAPE, num_experts=2, mamba_d_state=8, use_mamba_kernels=False, attn_layer_period=2, attn_layer_offset=1
    ),
    "bamba": BambaConfig(**SHAPE, **MAMBA, attn_layer_indices=[1]),
    "falcon_h1": FalconH1Config(**SHAPE, **MAMBA, mamba_d_ssm=64),
    "lfm2": Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"]),
    "recurrent_gemma": RecurrentGemmaConfig(
        **{k: v for k, v in SHAPE.items() if k != "max_position_embeddings"}, head_dim=8, lru_width=32
    ),
}


def _random(config: PreTrainedConfig) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    model: transformers.PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2 with the built-in tokenizer, as a folder that Hugging Face could have written."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    config = Qwen2Config(**(SHAPE | {"vocab_size": 512}))
    _random(config).save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUILTIN / name, path)
    return path


def test_a_local_folder(folder: Path) -> None:
    loaded = load_model(ModelConfig(name=str(folder)), CPU)
    assert loaded.max_tokens == 128
    assert loaded.model.config._attn_implementation == "sdpa"
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert loaded.tokenizer("Goal:", add_special_tokens=False)["input_ids"]


def test_bfloat16(folder: Path) -> None:
    loaded = load_model(ModelConfig(name=str(folder), dtype="bfloat16"), CPU)
    assert {p.dtype for p in loaded.model.parameters()} == {torch.bfloat16}
    assert loaded.model.config._attn_implementation == "eager"


def test_the_built_in_model() -> None:
    loaded = load_model(ModelConfig(), CPU)
    assert architecture_of(loaded.config) is DecoderOnly
    assert loaded.model.config.model_type == "llama"
    assert loaded.max_tokens == loaded.model.config.max_position_embeddings
    assert len(loaded.tokenizer) <= loaded.model.config.vocab_size


def test_the_adapter_settings_arrive(folder: Path) -> None:
    settings = ModelConfig(name=str(folder), lora=LoraSettings(rank=3, alpha=7.5))
    loaded = load_model(settings, CPU)
    lm = PackedLM(loaded.model, lora_config(settings, loaded.config))
    parameters = lm.adapter_parameters(ACTOR)
    every = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert {name.split(".")[-3] for name in parameters} == every
    assert {min(p.shape) for p in parameters.values()} == {3}
    assert lora_config(settings, loaded.config).lora_alpha == 7.5
    assert torch.isfinite(lm.forward(lm.pack(ragged())).log_probs_BA).all()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, True),  # 96 wide
        ({"lora": {"rank": 6}}, True),
        ({"lora": {"rank": 5}}, False),
        ({"dtype": "bfloat16"}, False),
        ({"quantize": "nf4"}, False),
    ],
)
def test_adapters_are_merged_in_a_model_hardly_wider_than_their_rank(settings: Any, expected: bool) -> None:
    for name in ("builtin", "builtin-t5"):
        chosen = ModelConfig.model_validate({"name": name, **settings})
        assert merges(chosen, load_shape(chosen)) == expected


def test_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="model 'no-such-model-of-anyone' cannot be loaded"):
        load_model(ModelConfig(name="no-such-model-of-anyone"), CPU)


@pytest.mark.parametrize("damage", ["truncated", "no weights", "no tokenizer", "no config", "bad config", "foreign"])
def test_a_damaged_folder(folder: Path, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "damaged"
    shutil.copytree(folder, path)
    weights = path / "model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif damage == "no weights":
        weights.unlink()
    elif damage == "no tokenizer":
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (path / name).unlink()
    elif damage == "no config":
        (path / "config.json").unlink()
    elif damage == "bad config":
        (path / "config.json").write_text("{")
    else:
        (path / "config.json").write_text('{"model_type": "of-another-world"}')
    said = {
        "truncated": "deserializing header",
        "no weights": "no file named model.safetensors",
        "no tokenizer": "finds no tokens",
        "no config": "in its config.json",
        "bad config": "not a valid JSON file",
        "foreign": "model type `of-another-world`",
    }[damage]
    with pytest.raises(ModelError, match=rf"(?s)cannot be loaded: .*{said}.*Expected a folder with config\.json"):
        load_model(ModelConfig(name=str(path)), CPU)


@pytest.mark.parametrize("config", [BartConfig(), SwitchTransformersConfig(), T5GemmaConfig()], ids=type)
def test_an_encoder_decoder_outside_the_t5_family_is_refused(config: PreTrainedConfig, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(
        ModelError, match=rf"encoder-decoder \({config.model_type}\).*expected T5, Flan-T5, mT5, UMT5 or UL2, or a dec"
    ):
        load_model(ModelConfig(name=str(tmp_path)), CPU)


def test_the_trial_would_refuse_absolute_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sacglam.models.packing_check.T5_FAMILY", ("bart",))
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    widths = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": 64}
    model = AutoModelForSeq2SeqLM.from_config(BartConfig(**layers, **widths, max_position_embeddings=64)).eval()
    with pytest.raises(ModelError, match=r"'tiny' \(bart\) cannot be packed: .*the given positions are ignored"):
        check_packing(model, "tiny")


@pytest.mark.parametrize(("name", "dtype"), [(name, ("float32", "bfloat16")[n % 2]) for n, name in enumerate(SEQ2SEQ)])
def test_a_t5_of_a_local_folder(name: str, dtype: str, tmp_path: Path) -> None:
    base = tiny_model(name)
    base.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(BUILTIN)
    tokenizer.save_pretrained(tmp_path)
    settings = ModelConfig(name=str(tmp_path), dtype=dtype)  # type: ignore[arg-type]
    loaded = load_model(settings, CPU)
    assert architecture_of(loaded.config) is EncoderDecoder
    assert loaded.max_tokens == ANY_LENGTH
    assert EncoderDecoder(loaded.model).logit_scale() == EncoderDecoder(base).logit_scale()
    head, own = loaded.model.get_output_embeddings().weight, base.get_output_embeddings().weight
    assert torch.equal(head, own.to(head.dtype))  # an output layer that is not the embedding stays another
    lm = PackedLM(loaded.model, lora_config(settings, loaded.config))
    assert torch.isfinite(lm.forward(lm.pack(ragged())).log_probs_BA).all()


@pytest.mark.parametrize(
    ("name", "attention"), [(name, ("sdpa", "eager")[n % 2]) for n, name in enumerate([*PACKED, "gpt2"])]
)
def test_transformers_pass_the_trial(name: str, attention: str) -> None:
    check_packing(tiny_model(name, attention), name)
    check_packing(tiny_model(name, attention, torch.bfloat16), name)


def test_large_logits_pass_with_the_rounding_of_their_type() -> None:
    model = tiny_model("flan", dtype=torch.bfloat16)
    model.get_output_embeddings().weight.mul_(100)  # log-probabilities below -100, which bfloat16 rounds by 1
    check_packing(model, "tiny")


@pytest.mark.parametrize("name", sorted(STATEFUL))
def test_state_that_leaks_between_actions_is_refused(name: str) -> None:
    with pytest.raises(
        ModelError, match=rf"model 'tiny' \({name}\) cannot be packed: .*expected a transformer decoder"
    ):
        check_packing(_random(STATEFUL[name]), "tiny")


@pytest.mark.parametrize("name", ["jamba", "falcon_h1", "lfm2"])
def test_the_trial_finds_a_small_leak_without_being_told_the_kind_of_layer(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sacglam.models.packing_check.ATTENTION_KINDS", {"hybrid", "conv", "linear_attention", "full_attention"}
    )
    with pytest.raises(ModelError, match="state leaks between actions"):
        check_packing(_random(STATEFUL[name]), name)


@pytest.mark.parametrize(
    "config",
    [Gemma2Config(**SHAPE, head_dim=8), GraniteConfig(**SHAPE, logits_scaling=8.0), CohereConfig(**SHAPE)],
    ids=["capped", "divided", "multiplied"],
)
def test_logits_that_are_not_the_output_layers_are_refused(config: PreTrainedConfig) -> None:
    with pytest.raises(ModelError, match="scales, caps or shifts its logits"):
        check_packing(_random(config), "tiny")


def test_positions_that_are_not_taken_as_given_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    decoder = type(model.get_decoder())
    forward = decoder.forward

    def deaf(self: Any, *args: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(decoder, "forward", deaf)
    with pytest.raises(ModelError, match="the given positions are ignored"):
        check_packing(model, "tiny")


def test_the_trial_leaves_the_model_as_it_was() -> None:
    model = tiny_model("llama")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_packing(model, "tiny")
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not model.get_output_embeddings()._forward_hooks


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        (LlamaConfig(**SHAPE), 128),
        (MistralConfig(**SHAPE, sliding_window=32), 32),
        (MistralConfig(**SHAPE, sliding_window=None), 128),
        (MistralConfig(**SHAPE, sliding_window=4096), 128),
        (Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=16, max_window_layers=0), 16),
        (Qwen2Config(**SHAPE, use_sliding_window=False, sliding_window=16), 128),
        (CONFIGS["gpt2"](), 96),
        (DogeConfig(**SHAPE, keep_window_size=32), 32),
        (Phi3Config(**SHAPE, pad_token_id=0, original_max_position_embeddings=32, rope_parameters=LONGROPE), 32),
    ],
)
def test_how_many_tokens_fit(config: PreTrainedConfig, tokens: int) -> None:
    assert _max_tokens(config) == tokens


@pytest.mark.parametrize(
    "config", [MambaConfig(**SMALL), BloomConfig(), MptConfig(), FalconConfig(alibi=True)], ids=type
)
def test_a_model_that_takes_no_positions_is_refused_in_one_line(config: PreTrainedConfig, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="cannot be packed: it takes no positions") as caught:
        load_model(ModelConfig(name=str(tmp_path)), CPU)
    assert len(str(caught.value).replace(str(tmp_path), "")) < 250


@pytest.fixture
def without_sdpa(folder: Path, tmp_path: Path) -> Callable[[PreTrainedConfig], ModelConfig]:
    """Saves a model that has no sdpa attention."""

    def save(config: PreTrainedConfig) -> ModelConfig:
        _random(config).save_pretrained(tmp_path)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(folder / name, tmp_path)
        return ModelConfig(name=str(tmp_path))

    return save


def test_a_model_without_sdpa_is_loaded_with_eager_attention(
    without_sdpa: Callable[[PreTrainedConfig], ModelConfig],
) -> None:
    loaded = load_model(without_sdpa(GPTJConfig(**GPT, rotary_dim=8)), CPU)
    assert loaded.model.config._attn_implementation == "eager"


def test_a_model_without_sdpa_is_refused_for_what_eager_shows(
    without_sdpa: Callable[[PreTrainedConfig], ModelConfig],
) -> None:
    config = RwkvConfig(**(SMALL | {"vocab_size": 512}), context_length=128)
    with pytest.raises(ModelError, match="cannot be packed: its hidden states differ"):
        load_model(without_sdpa(config), CPU)


def test_a_window_that_counts_the_tokens_of_other_actions_is_refused() -> None:
    shape = {"vocab_size": 64, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 128}
    config = GPTNeoConfig(**shape, attention_types=[[["global", "local"], 1]], window_size=32)
    with pytest.raises(ModelError, match="its window_size of 32 tokens counts those of other actions"):
        check_packing(_random(config), "tiny")


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**SHAPE, sliding_window=32),
        Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=32, max_window_layers=1),
        Gemma3TextConfig(**SHAPE, head_dim=8, sliding_window=32, layer_types=["sliding_attention", "full_attention"]),
        Phi3Config(**SHAPE, pad_token_id=0, original_max_position_embeddings=32, rope_parameters=LONGROPE),
    ],
    ids=["mistral", "qwen2", "gemma3", "phi3"],
)
@torch.no_grad()
def test_scores_are_right_up_to_the_longest_query_of_a_model_with_a_window(config: PreTrainedConfig) -> None:
    lm = PackedLM(_random(config), lora_config(ModelConfig(), config))
    plain, rng, longest = _random(config), np.random.default_rng(0), _max_tokens(config)
    assert longest == 32
    # The first query's last actions begin far beyond the window; in the second one's row, its few tokens are padded.
    queries = [
        TokenisedQuery(rng.integers(1, 64, 20), tuple(rng.integers(1, 64, longest - 20) for _ in range(6))),
        TokenisedQuery(rng.integers(1, 64, 3), (rng.integers(1, 64, 2), rng.integers(1, 64, 4))),
    ]
    got_BA = lm.forward(lm.pack(queries)).log_probs_BA
    for row, query in enumerate(queries):
        expected_A = alone("mistral", plain, query)
        torch.testing.assert_close(got_BA[row, : len(expected_A)], expected_A, atol=1e-4, rtol=0)
