"""PPO through the same commands, loop and processes as SAC."""

from __future__ import annotations

import json
import re
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
from safetensors.torch import load_file

import sacglam
from sacglam.errors import ModelError
from sacglam.runs import checkpoint
from tests.conftest import call, tiny_ppo
from tests.conftest import sacglam as command
from tests.integration.test_agent import ACTIONS, GOAL, OBSERVATION
from tests.integration.test_resume import assert_same_end, interrupt, metrics
from tests.with_stand_in import stood_in

pytestmark = pytest.mark.slow


HALF = "steps=320"  # ten intervals


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished tiny run of PPO."""
    out = tmp_path_factory.mktemp("runs") / "ppo"
    done = call(tiny_ppo(out, HALF), curves=True)
    assert done.returncode == 0, done.stderr
    return out


def test_a_run_counts_its_updates_and_reports_its_losses(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert summary["finished"]
    assert (run / "curves.png").stat().st_size > 1000
    assert summary["updates"] == 10 * 2 * 2  # intervals, epochs, minibatches of 16 in 32 steps
    lines = metrics(run)
    assert all({"policy_loss", "value_loss", "entropy", "kl", "clipped_share", "return"} <= set(line) for line in lines)
    # An interval's first minibatch has ratio 1, the last has not: the mean is above 0.
    assert all(line["kl"] > 0 for line in lines)
    assert not any(name.startswith("buffer") for line in lines for name in line)
    tensors = checkpoint.load(checkpoint.steps(run / "checkpoints")[-1]).tensors
    assert {name.split(".")[2] for name in tensors if name.startswith("model.lora.")} == {"default"}  # and no target


def test_every_metric_of_sac_and_ppo_is_explained(run: Path, tiny_run: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    cells = [row.split(" | ")[0] for row in page.splitlines() if row.startswith("| `")]
    explained = {name for cell in cells for name in re.findall("`(.+?)`", cell)}
    for folder in (run, tiny_run):
        found = {re.sub("/.*", "/TYPE", name) for line in metrics(folder) for name in line}
        assert found <= explained
        assert {"grad_norm", "success/TYPE", "entropy_share"} <= found


def test_a_killed_run_resumes_to_the_same_end(run: Path, tmp_path: Path) -> None:
    again = tmp_path / "killed"
    assert interrupt(tiny_ppo(again, HALF), again, 6, signal.SIGKILL) == -signal.SIGKILL
    assert interrupt(command("train", resume=str(again)), again, 8, signal.SIGTERM) == 0
    assert call(command("train", resume=str(again))).returncode == 0
    assert_same_end(again, run, lines=10)


def test_its_agent_has_a_value_for_the_state_and_none_for_actions(run: Path, tmp_path: Path) -> None:
    agent = sacglam.load_agent(run)
    assert sum(agent.probabilities(OBSERVATION, GOAL, ACTIONS).values()) == pytest.approx(1.0, abs=1e-6)
    assert -2 < agent.value(OBSERVATION, GOAL, ACTIONS) < 2
    with pytest.raises(ModelError, match="trained by PPO has no Q values"):
        agent.q_values(OBSERVATION, GOAL, ACTIONS)
    played = call(command("play", run))
    assert played.returncode == 0, played.stderr
    assert "V +" in played.stdout or "V -" in played.stdout
    assert call(command("export", run, tmp_path / "out")).returncode == 0
    exported = sacglam.load_agent(tmp_path / "out")
    assert exported.value(OBSERVATION, GOAL, ACTIONS) == agent.value(OBSERVATION, GOAL, ACTIONS)
    assert load_file(tmp_path / "out" / "critic.safetensors")["heads.value.0.weight"].shape[0] == 16


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("ray") is None or find_spec("deepspeed") is None, reason="Ray or DeepSpeed is missing")
def test_an_engine_and_two_ranks_on_two_nodes_learn_as_one_process_does(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two logical nodes, neither with room for all three processes: engine and ranks are spread over both."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=2)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        settings = [HALF, "engines.count=1", "learners.count=2"]
        command = [*tiny_ppo(tmp_path / "ranks", *settings), "--device", "cpu"]
        done = call(stood_in(command))
        assert done.returncode == 0, done.stderr
    finally:
        cluster.shutdown()
    for one, other in zip(metrics(tmp_path / "ranks"), metrics(run), strict=True):
        for name in other:
            assert one[name] == pytest.approx(other[name], rel=1e-3, abs=1e-3), (name, one, other)
