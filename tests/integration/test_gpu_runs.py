"""Whole runs on a fake GPU: the CPU's metrics and weights, and what is done with a finished run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from sacglam import config, training
from sacglam.agent import load_agent
from sacglam.models import packed_lm
from sacglam.runs import checkpoint
from sacglam.runs.display import Display
from sacglam.tools.dry_run import calibrate
from sacglam.tools.dry_run.forecast import forecast, placed
from sacglam.tools.profile.measure import measure, sources_of
from sacglam.training import resume, train
from tests.conftest import SIMPLE_PPO, T5, TINY, TINY_PPO
from tests.fake_gpu import fake_gpu
from tests.integration.test_resume import metrics

pytestmark = pytest.mark.slow

SHORT = ["steps=192", "evaluation.episodes=4"]
SAC = [*TINY, *SHORT, "algo.updates_per_interval=2"]
RUNS = {
    "sac": (None, SAC),
    "sac t5": (None, [*SAC, T5]),
    "ppo": (SIMPLE_PPO, [*TINY_PPO, *SHORT]),
}


@pytest.mark.parametrize("name", ["sac", "ppo", pytest.param("sac t5", marks=pytest.mark.nightly)])
def test_a_run_on_the_gpu_is_the_cpus_and_resumes_and_is_used(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "_SCORING_S", 0.5)
    monkeypatch.setattr(calibrate, "_UPDATE_S", 0.5)
    monkeypatch.setattr(calibrate, "_STEADY_S", 0.2)
    monkeypatch.setattr(training, "CHECKPOINT_STEPS", 64)
    monkeypatch.setattr(training, "LOG_STEPS", 32)
    monkeypatch.setattr(packed_lm, "BUCKETS", {})  # other lengths are rounded otherwise
    file, settings = RUNS[name]
    gpu, cpu, cut = (tmp_path / folder for folder in ("gpu", "cpu", "cut"))
    train(config.load(file, [*settings, "device=cpu"]), cpu)
    with fake_gpu():
        train(config.load(file, [*settings, "device=auto"]), gpu)
        shutil.copytree(gpu, cut)
        shutil.rmtree(checkpoint.steps(cut / "checkpoints")[-1])
        resume(cut)
        agent = load_agent(gpu)
        agent.export(tmp_path / "agent")
        scores = agent.probabilities("You see: cat", "Grasp cat", ("Grasp", "Go to cat"))
        profile, _ = measure(sources_of([gpu], [])[0], 1, Display())
        forecast(*placed(config.load(file, [*settings, "device=cuda"])), Display())
    assert profile.updates > 0
    assert scores == load_agent(cpu).probabilities("You see: cat", "Grasp cat", ("Grasp", "Go to cat"))
    expected = checkpoint.load(checkpoint.steps(cpu / "checkpoints")[-1]).tensors
    for run in (gpu, cut):
        assert metrics(run) == metrics(cpu)
        found = checkpoint.load(checkpoint.steps(run / "checkpoints")[-1]).tensors
        assert [key for key, tensor in expected.items() if not torch.equal(tensor, found[key])] == []
    assert (tmp_path / "agent" / "critic.safetensors").read_bytes() == (
        cpu / "adapter" / "critic.safetensors"
    ).read_bytes()
