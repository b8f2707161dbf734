"""Runs that begin from others, keep their best agent, and stop when they are good enough."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from sacglam import config as configuration
from sacglam import training
from sacglam.agent import load_agent
from sacglam.build import build
from sacglam.errors import ModelError, RunDirectoryError, SacglamError
from sacglam.models.agent_model import AgentModel, load_exported, under
from tests.conftest import TINY, call, sacglam, tiny_train
from tests.fuzz import common
from tests.integration.test_resume import assert_same_end, interrupt, metrics
from tests.integration.test_warnings import Notes, Won, world

pytestmark = pytest.mark.slow


def beginning(run: Path, *overrides: str) -> dict[str, torch.Tensor]:
    """The weights with which a run begins."""
    parts = build(configuration.load(None, [*TINY, "device=cpu", "env.copies=8", f"init_from={run}", *overrides]))
    return under("model", parts.learners.state()[0])


def test_a_run_begins_with_the_agent_of_another(tiny_run: Path) -> None:
    trained = load_agent(tiny_run, "cpu").model.state()
    # Another environment, and other goals.
    began = beginning(tiny_run, "env.name=bitflip", "seed=7")
    assert began.keys() == trained.keys()
    for name, tensor in began.items():
        followed = name.replace("target_heads.", "heads.").replace("_target.", ".")
        assert torch.equal(tensor, trained[followed]), name


def test_a_critic_that_does_not_fit_begins_anew(tiny_run: Path) -> None:
    trained = load_agent(tiny_run, "cpu").model.state()
    with pytest.warns(UserWarning, match="the critic of .* does not fit"):
        began = beginning(tiny_run / "adapter", "critic.hidden=[8]")
    actor = [name for name in began if name.startswith("lora.default.")]
    assert actor
    assert all(torch.equal(began[name], trained[name]) for name in actor)


def test_settings_that_make_another_policy_of_the_adapter_are_said(tiny_run: Path) -> None:
    said = r"was trained with policy\.temperature 1\.0 \(here 3\.0\), prompt\.history 0 \(here 1\); with the settings"
    with pytest.warns(UserWarning, match=said):
        beginning(tiny_run, "policy.temperature=3", "prompt.history=1")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.name=builtin-t5"], "expected the base model builtin_t5, as this run has, got builtin"),
        (["model.lora.rank=8"], "expected model.lora.rank 8, as this run has, got 16"),
        (["model.lora.layers=1"], "tensors do not fit this model"),
    ],
)
def test_what_does_not_fit_is_refused(tiny_run: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(SacglamError, match=message):
        beginning(tiny_run, *overrides)


def test_what_is_no_exported_agent_is_refused(tiny_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="expected an exported agent in"):
        load_exported(tmp_path, cast(AgentModel, None))
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny_run / "adapter", damaged)
    (damaged / "critic.safetensors").write_bytes(b"{")
    with pytest.raises(ModelError, match="expected an exported agent in"):
        load_exported(damaged, cast(AgentModel, None))
    for text in ("null", "[1]", "5"):
        (damaged / "adapter_config.json").write_text(text)
        with pytest.raises(ModelError, match="expected an exported agent in"):
            load_exported(damaged, cast(AgentModel, None))


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


def test_the_best_agent_is_kept(tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "killed"
    overrides = ["evaluation.every_steps=64", "evaluation.every_episodes=32"]
    assert call(tiny_train(whole, *overrides)).returncode == 0
    evaluated = [line for line in metrics(whole) if "eval_success/overall" in line]
    best = max(evaluated, key=lambda line: line["eval_success/overall"])
    kept = {"env_steps": best["env_steps"], "updates": best["updates"]}
    rates = {name: rate for name, rate in best.items() if name.startswith("eval_success/")}
    assert summary(whole)["best"] == kept | {
        "success_after": {name.partition("/")[2]: rate for name, rate in rates.items()}
    }
    assert summary(whole)["finished"]
    agent = load_agent(whole, "cpu", best=True)
    assert agent.env_steps == best["env_steps"]
    assert agent.summary["success_after"]["overall"] == best["eval_success/overall"]
    assert agent.summary["evaluation_episodes"] == 32
    assert load_agent(whole / "best", "cpu").summary == agent.summary
    agent.export(tmp_path / "exported")
    exported = load_agent(tmp_path / "exported", "cpu")
    assert (exported.env_steps, exported.summary) == (agent.env_steps, agent.summary)
    card = (tmp_path / "exported" / "README.md").read_text()
    assert f"{best['eval_success/overall']:.2f} |" in card
    assert card == (whole / "best" / "README.md").read_text()
    with pytest.raises(RunDirectoryError, match="is an exported agent; export the run's best one with --best"):
        load_agent(tmp_path / "exported", "cpu", best=True)
    done = call(sacglam("evaluate", whole, "--best", "--json", episodes="8"))
    assert done.returncode == 0, done.stderr
    # Killed and resumed, and finished runs stay as they are.
    interrupt(tiny_train(run, *overrides), run, 6, signal.SIGKILL)
    for _ in range(2):
        assert call(sacglam("train", resume=str(run))).returncode == 0
        assert_same_end(run, whole, lines=len(metrics(whole)))
    assert summary(run)["best"] == summary(whole)["best"]
    files = ("adapter_model.safetensors", "critic.safetensors")
    assert all((run / "best" / name).read_bytes() == (whole / "best" / name).read_bytes() for name in files)
    # An agent that was kept after the newest checkpoint stays, with its evaluation.
    later = {"env_steps": 9_999, "success_after": {"overall": 1.0}}
    (run / "best/summary.json").write_text(json.dumps(agent.summary | later))
    assert call(sacglam("train", resume=str(run))).returncode == 0
    assert summary(run)["best"] == summary(whole)["best"] | later
    assert load_agent(run, "cpu", best=True).env_steps == 9_999


def test_a_run_ends_once_it_is_good_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common.quick_runs(monkeypatch)
    monkeypatch.setattr(training, "LOG_STEPS", 24)
    run, display = tmp_path / "run", Notes()
    settings = ["steps=64", *world(Won), "evaluation.stop_at=0.9"]
    done = training.train(configuration.override(configuration.parse(common.TINY), settings), run, display)
    assert (done["env_steps"], done["finished"]) == (16, True)
    assert "greedy success 1.00 after 16 steps; finished early (evaluation.stop_at)" in display.notes
    assert {"eval_success/overall", "critic_loss"} <= {key for line in metrics(run) for key in line}
    again = training.resume(run, Notes(), trusted=True)
    assert again["env_steps"] == 16


def test_without_an_evaluation_there_is_no_best(tiny_run: Path) -> None:
    done = call(sacglam("play", tiny_run, "--best"))
    assert done.returncode == 1
    assert "has no best agent" in " ".join(done.stderr.split())


def test_a_run_resumes_without_what_it_began_from(tiny_run: Path, tmp_path: Path) -> None:
    origin, run = tmp_path / "origin", tmp_path / "run"
    shutil.copytree(tiny_run / "adapter", origin)
    assert interrupt(tiny_train(run, f"init_from={origin}"), run, 7, signal.SIGTERM) == 0
    shutil.rmtree(origin)
    # To make a lost summary again, that agent would have to be evaluated.
    kept = (run / "summary.json").rename(tmp_path / "summary.json")
    refused = call(sacglam("train", resume=str(run)))
    assert refused.returncode == 1
    assert f"expected an exported agent in {origin}" in " ".join(refused.stderr.split())
    kept.rename(run / "summary.json")
    assert call(sacglam("train", resume=str(run))).returncode == 0
