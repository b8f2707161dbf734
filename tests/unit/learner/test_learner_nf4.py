"""Learning over a base in 4 bits: the base stays as it is and out of all files."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load
from transformers import AutoConfig, AutoTokenizer

from sacglam.build import build_learner, build_model
from sacglam.clock import PhaseClock
from sacglam.config import Config
from sacglam.config import load as load_config
from sacglam.learner.learner import Learner
from sacglam.models.architectures import architecture_of
from sacglam.models.loading import BUILTIN, BUILTIN_T5
from sacglam.resolve import on_this_machine
from tests.unit.learner.test_learner import windows

pytest.importorskip("bitsandbytes")
SETTINGS = [
    "threads=1",
    "critic.hidden=[16]",
    "env.copies=1",
    "algo.update_interval=1",
    "algo.warmup_updates=0",
    "algo.actor_lr=1e-2",
    "model.quantize=nf4",
    "policy.length_normalised=true",  # or random weights would always take the shortest action
]


@pytest.fixture(scope="module", params=[BUILTIN, BUILTIN_T5], ids=["builtin", "builtin-t5"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model like a built-in one with rows of whole blocks, which every CPU dequantises right; random weights."""
    shape = AutoConfig.from_pretrained(request.param)
    if shape.is_encoder_decoder:
        shape.update({"d_model": 64, "num_heads": 2})
    else:
        shape.update({"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2})
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    architecture_of(shape).auto.from_config(shape).save_pretrained(folder)
    AutoTokenizer.from_pretrained(request.param).save_pretrained(folder)
    return str(folder)


def make_learner(config: Config) -> Learner:
    return build_learner(config, build_model(config), PhaseClock())


def settings(model: str, *overrides: str) -> Config:
    return on_this_machine(load_config(None, [*SETTINGS, f"model.name={model}", *overrides]))


def base(learner: Learner) -> dict[str, torch.Tensor]:
    """All weights but those that learn or follow."""
    learned = {id(p) for p in learner.model.learned()}
    return {name: p for name, p in learner.model.module.named_parameters() if id(p) not in learned}


def test_the_base_stays_as_it_is_and_out_of_checkpoint_and_export(model: str) -> None:
    learner = make_learner(settings(model))
    before = {name: p.detach().clone() for name, p in base(learner).items()}
    assert {p.dtype for p in before.values()} == {torch.uint8, torch.float32}
    learner.learn([windows(), windows()])
    half = learner.state()
    learner.learn([windows()])
    after = base(learner)
    assert all(torch.equal(before[name], after[name]) for name in before)

    tensors, _ = learner.state()
    assert {name.split(".")[1] for name in tensors if name.startswith("model.")} == {"lora", "heads", "target_heads"}
    assert not {t.dtype for t in tensors.values()} & {torch.uint8}
    exported = load(learner.exported()["adapter_model.safetensors"])
    assert exported
    assert all("lora_" in name for name in exported)

    resumed = make_learner(settings(model))
    resumed.load_state(*half)
    resumed.learn([windows()])
    again, _ = resumed.state()
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)
