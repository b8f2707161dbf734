"""A collapsed start is reported, and `policy.temperature: auto` opens it: one number for all that the run leaves."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typing_extensions import override

from sacglam import build, config, load_agent, training
from sacglam import resolve as resolving
from sacglam.collector import first_states
from sacglam.errors import ConfigError
from sacglam.policy import mean_entropy, uniform_entropy
from sacglam.runs import checkpoint
from sacglam.runs.directory import RunDirectory
from sacglam.runs.display import Display
from sacglam.training import resume, train
from tests.conftest import TINY
from tests.integration.test_resume import assert_same_end
from tests.often import LOG_STEPS
from tests.unit.envs.test_envs_registry import code_blocks

pytestmark = pytest.mark.slow

HOUSE = [*TINY, "env.name=house:House", "device=cpu"]
SHORT = ["steps=32", "evaluation.episodes=1"]


@pytest.fixture(scope="module", autouse=True)
def logs() -> Iterator[None]:
    """The trainings of this process log as those of the launcher do, which others are compared with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "LOG_STEPS", LOG_STEPS)
        yield


@pytest.fixture(scope="module", autouse=True)
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The documented environment, importable as `house`, whose texts the built-in model does not know."""
    folder = tmp_path_factory.mktemp("house")
    (folder / "house.py").write_text(code_blocks()[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.delitem(sys.modules, "house", raising=False)
        yield


class Notes(Display):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.found: list[str] = []

    @override
    def note(self, text: str) -> None:
        self.found.append(text)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with `auto`."""
    out = tmp_path_factory.mktemp("runs") / "opened"
    train(config.load(None, [*HOUSE, "policy.temperature=auto"]), out)
    return out


@pytest.mark.parametrize(
    ("settings", "collapsed"),
    [
        ([*HOUSE, "policy.temperature=1"], True),
        ([*HOUSE, "policy.temperature=auto"], False),
        ([*TINY, "policy.temperature=1"], False),
    ],
    ids=["unknown texts", "opened", "known texts"],
)
def test_a_collapsed_start_is_reported(settings: list[str], collapsed: bool, tmp_path: Path) -> None:
    notes = Notes()
    train(config.load(None, [*settings, *SHORT]), tmp_path / "run", notes)
    # The run is too short for an update, and says what it derives.
    found = [note for note in notes.found if "no update" not in note and not note.startswith("derived")]
    assert [("policy.temperature=auto" in note) for note in found] == [True] * collapsed


def test_auto_leaves_an_open_policy_as_it_is() -> None:
    found = resolving.with_scores(config.load(None, ["policy.temperature=auto", "device=cpu"]))
    assert found == config.load(None, ["policy.temperature=1", "critic.score_weight=0.2", "device=cpu"])


def test_the_weight_of_scores_is_lower_where_the_model_has_opinions() -> None:
    asked = config.load(None, ["env.name=bitflip", "env.options={bits: 6, text: furniture}", "device=cpu"])
    found = resolving.with_scores(asked)
    assert resolving.derived(asked, found) == {"critic.score_weight": found.critic.score_weight}
    policies = build.build_model(found).log_policy(first_states(found))
    spread = np.mean([log_pi.std() for log_pi in policies])
    assert found.critic.score_weight == pytest.approx(0.03 / spread, rel=0.01)
    assert 0.01 < found.critic.score_weight < 0.05
    assert resolving.with_scores(found) == found


def test_auto_opens_the_first_states() -> None:
    closed = config.load(None, [*HOUSE, "policy.temperature=auto"])
    found = resolving.with_scores(closed)
    assert found == closed.model_copy(update={"policy": found.policy, "critic": found.critic})
    states = first_states(found)
    policies = build.build_model(found).log_policy(states)
    assert mean_entropy(policies) == pytest.approx(resolving.OPEN_SHARE * uniform_entropy(policies), rel=0.01)


def test_the_agent_and_the_export_have_the_number_of_the_run(opened: Path) -> None:
    settings = RunDirectory.open(opened, trusted=True).config()
    assert isinstance(settings.policy.temperature, float)
    assert settings.policy.temperature > 5
    agent = load_agent(opened, trusted=True)
    assert agent.model.policy.temperature == settings.policy.temperature
    exported = load_agent(opened / "adapter", trusted=True)
    assert exported.config.policy.temperature == settings.policy.temperature


def test_a_resumed_run_keeps_its_temperature_bit_for_bit(opened: Path, tmp_path: Path) -> None:
    run = tmp_path / "cut"
    shutil.copytree(opened, run)
    shutil.rmtree(checkpoint.steps(run / "checkpoints")[-1])
    (run / "summary.json").unlink()
    resume(run, trusted=True)
    assert_same_end(run, opened)


def test_a_run_without_its_number_is_refused(opened: Path, tmp_path: Path) -> None:
    run = tmp_path / "open"
    shutil.copytree(opened, run)
    text = (run / "config.yaml").read_text()
    number = RunDirectory.open(run, trusted=True).config().policy.temperature
    (run / "config.yaml").write_text(text.replace(f"temperature: {number}", "temperature: auto"))
    with pytest.raises(ConfigError, match="a number is recorded"):
        resume(run, trusted=True)
