"""`sacglam profile`: real runs of the loop, their phases, and the files written."""

from __future__ import annotations

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sacglam import config as configuration
from tests.conftest import TINY, call, sacglam
from tests.unit.tools.profile.test_profiling_trace import assert_well_formed
from tests.with_stand_in import stood_in


def tiny_profile(out: Path, *sources: Path, overrides: list[str] = TINY, **options: str) -> dict[str, Any]:
    """Profile and read what was written; engines, if any, are stand-ins."""
    words = [word for override in overrides for word in ("--set", override)]
    done = call(stood_in(sacglam("profile", *sources, *words, "--json", out=str(out), **options)))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((out / "profile.json").read_text())
    assert json.loads(done.stdout) == found["profiles"]
    return found


def assert_adds_up(profile: dict[str, Any], other: float = 0.06) -> None:
    """The phases sum to the wall time, all but a small part, `other` at most.

    Tiny runs last a second, in which a pause of the process alone can take some hundredths; they have half of this.
    """
    seconds = profile["seconds"]
    assert sum(seconds.values()) == pytest.approx(profile["wall_seconds"])
    assert all(each >= 0 for each in seconds.values())
    assert seconds["other"] < other * profile["wall_seconds"]


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """SAC with 8 rows an environment step, and PPO with 4 epochs."""
    folder = tmp_path_factory.mktemp("profile")
    ppo = ["threads=1", "env.copies=8", "critic.hidden=[16]"]
    ppo.append("algo={type: ppo, update_interval: 64, epochs: 4, batch_size: 32}")
    sac = [*TINY, "algo.batch_size=64", "algo.updates_per_interval=4", "algo.n_step=3", "algo.td_lambda=null"]
    for name, overrides in (("sac", sac), ("ppo", ppo)):
        (folder / f"{name}.yaml").write_text(configuration.load(overrides=overrides).to_yaml())
    found = tiny_profile(folder / "out", folder / "sac.yaml", folder / "ppo.yaml", overrides=[], intervals="4")
    return folder / "out", found


def test_phases_sum_to_the_wall_time(side_by_side: tuple[Path, dict[str, Any]]) -> None:
    for profile in side_by_side[1]["profiles"]:
        assert_adds_up(profile)
        learning = {"batch", "target", "forward", "backward", "optimizer"}
        assert {"environment", "scoring", "goals", "replay", "waiting", "other"} | learning == profile["seconds"].keys()


def test_counters_are_those_of_the_measured_intervals(side_by_side: tuple[Path, dict[str, Any]]) -> None:
    sac, ppo = side_by_side[1]["profiles"]
    assert (sac["env_steps"], sac["updates"]) == (4 * 32, 4 * 4)
    assert (ppo["env_steps"], ppo["updates"]) == (4 * 64, 4 * 4 * 2)
    for profile, name in ((sac, "sac"), (ppo, "ppo")):
        assert profile["label"] == profile["algorithm"] == name
        assert profile["intervals"] == 4
        assert profile["warm_up_intervals"] >= 2


def test_the_trace_has_every_interval(side_by_side: tuple[Path, dict[str, Any]]) -> None:
    folder, found = side_by_side
    assert found["versions"]["torch"].startswith("2.")
    events = json.loads((folder / "trace.json").read_text())
    assert_well_formed(events)
    for pid, profile in enumerate(found["profiles"], start=1):
        slices = [e for e in events["traceEvents"] if e["ph"] == "X" and e["pid"] == pid]
        intervals = [e for e in slices if e["cat"] == "interval"]
        assert len(intervals) == profile["warm_up_intervals"] + profile["intervals"]
        measured = intervals[profile["warm_up_intervals"] :]
        assert sum(e["dur"] for e in measured) == pytest.approx(1e6 * profile["wall_seconds"])
        inside = [e for e in slices if e["cat"] == "phase" and e["ts"] >= measured[0]["ts"]]
        scoring = sum(e["dur"] for e in inside if e["name"] == "scoring")
        assert scoring == pytest.approx(1e6 * profile["seconds"]["scoring"])


def test_a_run_continues_from_its_checkpoint_and_is_left_unchanged(tiny_run: Path, tmp_path: Path) -> None:
    def content() -> dict[str, str]:
        files = sorted(file for file in tiny_run.rglob("*") if file.is_file())
        return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    before = content()
    (profile,) = tiny_profile(tmp_path / "out", tiny_run, overrides=["algo.batch_size=64"], intervals="8")["profiles"]
    assert content() == before
    assert profile["label"] == "tiny"
    assert profile["warm_up_intervals"] == 2, "the replay is filled already"
    assert_adds_up(profile)


def test_tables_are_printed(tmp_path: Path) -> None:
    words = [word for override in (*TINY, "algo.td_lambda=null") for word in ("--set", override)]
    done = call(sacglam("profile", *words, intervals="2", out=str(tmp_path / "out")))
    assert done.returncode == 0, done.stderr
    for word in (
        "ms/step",
        "ms/update",
        "environment",
        "batch making",
        "CPU cores kept busy",
        "ui.perfetto.dev",
    ):
        assert word in done.stdout
    assert "measuring" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no_such_file.yaml"], "no_such_file.yaml"),
        (["."], "expected a run directory with a config.yaml"),
        (["--set", "device=cuda:7"], "cannot be used here"),
    ],
)
def test_bad_input_gets_a_message_and_no_traceback(arguments: list[str], said: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = call(sacglam("profile", *arguments, out=str(out)))
    assert done.returncode == 1
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not out.exists()


def test_a_folder_with_files_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    done = call(sacglam("profile", out=str(tmp_path)))
    assert done.returncode == 1
    assert "choose another one" in " ".join(done.stderr.split())
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.slow
def test_the_quickstart_adds_up(tmp_path: Path) -> None:
    (profile,) = tiny_profile(tmp_path / "out", overrides=["threads=1"], intervals="3")["profiles"]
    assert_adds_up(profile, other=0.03)
    assert profile["updates"] == 15


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("ray") is None or find_spec("deepspeed") is None, reason="Ray or DeepSpeed is missing")
def test_an_engine_and_a_rank(tmp_path: Path) -> None:
    where = ["engines.count=1", "learners.count=1", "runtime.lag=1", "device=cpu"]
    (profile,) = tiny_profile(tmp_path / "out", overrides=[*TINY, *where], intervals="4")["profiles"]
    assert_adds_up(profile)
    assert {"submit", "handoff"} <= profile["seconds"].keys()
    assert "optimizer" in profile["rank_seconds_per_update"]
    assert "optimizer" not in profile["seconds"], "ranks learn on clocks of their own"
