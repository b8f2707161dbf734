"""Every variant of the paper's ablations trains and moves what it should and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sacglam import config, training
from sacglam.config.sections import RuntimeConfig
from sacglam.evaluate import Evaluations
from sacglam.runs import checkpoint
from sacglam.runs.directory import RunDirectory
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


def test_with_lag_samples_and_the_last_metrics_wait_for_pending_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "LOG_STEPS", 32)
    monkeypatch.setattr(training, "SAMPLES_STEPS", 64)
    pending, sample = list[tuple[int, int]](), Evaluations.sample

    def counted(self: Evaluations, episodes: int, env_steps: int) -> Any:
        pending.append((env_steps, self.parts.learners.pending))
        return sample(self, episodes, env_steps)

    monkeypatch.setattr(Evaluations, "sample", counted)
    asked = config.load(None, [*TINY, "device=cpu", "steps=320", "env.copies=8", "critic.score_weight=0"])
    # A configuration allows a lag only with engines and ranks; the loop treats pending updates alike without them.
    summary = train(asked.model_copy(update={"runtime": RuntimeConfig(lag=1)}), tmp_path / "run")
    lines = RunDirectory(tmp_path / "run").metrics()
    assert max(line["staleness"] for line in lines) > 0
    assert {(step, 0) for step in range(64, 321, 64)} <= set(pending)
    assert lines[-1]["updates"] == summary["updates"] > lines[-2]["updates"]
