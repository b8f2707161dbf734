"""Every variant of the paper's ablations trains and moves what it should and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sacglam import config, training
from sacglam.runs import checkpoint
from sacglam.training import train
from tests.conftest import TINY

VARIANTS = {
    "observation input, uniform sampling": ["critic.input=observation", "replay.hindsight.type=uniform"],
    "frozen backbone, prior sampling": [
        "critic.backbone=frozen",
        "replay.hindsight.type=prior",
    ],
    "separate backbone, one step": ["critic.backbone=separate", "algo.n_step=1"],
    "separate backbone, observation input, micro batches": [
        "critic.backbone=separate",
        "critic.input=observation",
        "algo.micro_batch_size=5",
    ],
    "online target backbone, scored end of sequence, normalised": [
        "critic.target_backbone=online",
        "policy.score_eos=true",
        "policy.length_normalised=true",
    ],
    "online target backbone, log-probabilities in Q": [
        "critic.target_backbone=online",
        "critic.score_weight=0.1",
    ],
    "one critic, no hindsight, checkpointed layers": [
        "critic.num_critics=1",
        "replay.hindsight=none",
        "model.lora.rank=4",
        "model.gradient_checkpointing=true",
    ],
    "plain adapters, the last steps and the actions in the prompt": [
        "model.lora.rank=4",
        "prompt.template='{goal}: {history}{observation} {actions} Action:'",
        "prompt.history=2",
    ],
    "base in 4 bits": ["model.quantize=nf4"],
}
"""Each setting in one run, in pairs that do not touch each other's code."""

RUN = [*TINY, "algo.updates_per_interval=2"]  # the run is short

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("model", ["builtin", "builtin-t5"])
@pytest.mark.parametrize("name", VARIANTS)
def test_variant_trains(name: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "CHECKPOINT_STEPS", 96)
    if "4 bits" in name:
        pytest.importorskip("bitsandbytes")
    overrides = [*RUN, f"model.name={model}", "steps=192", "evaluation.episodes=2", *VARIANTS[name]]
    summary = train(config.load(None, overrides), tmp_path / "run")
    assert summary["finished"]
    assert summary["updates"] >= 8
    first, last = (checkpoint.load(folder).tensors for folder in checkpoint.steps(tmp_path / "run" / "checkpoints"))
    moved = {tensor for tensor in first if not torch.equal(first[tensor], last[tensor])}
    assert {tensor for tensor in first if tensor.startswith("model.heads.") and tensor.endswith("weight")} <= moved
    assert {tensor for tensor in first if tensor.startswith("model.lora.default.")} <= moved
    assert {
        tensor for tensor in first if tensor.startswith("model.target_heads.") and tensor.endswith("weight")
    } <= moved
    adapters = {tensor.split(".")[2] for tensor in first if tensor.startswith("model.lora.")}
    expected = {"default", "default_target"}
    if "separate" in name:
        expected = {"default", "critic", "critic_target"}
    if "online" in name:
        expected = {"default"}
    assert adapters == expected


def test_micro_batches_give_the_gradient_of_the_whole_batch(tmp_path: Path) -> None:
    ends = []
    for size in ("null", "5"):
        run = tmp_path / size
        train(config.load(None, [*RUN, "steps=160", "evaluation.episodes=2", f"algo.micro_batch_size={size}"]), run)
        ends.append(checkpoint.load(checkpoint.steps(run / "checkpoints")[-1]).tensors)
    for name, tensor in ends[0].items():
        if name.startswith("model.heads."):
            torch.testing.assert_close(ends[1][name], tensor, rtol=1e-4, atol=1e-5)
