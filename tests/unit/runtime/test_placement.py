"""Plans for machines of other sizes than this one."""

from __future__ import annotations

import pytest

from sacglam import config
from sacglam.errors import ConfigError
from sacglam.runtime.placement import Machine, overrides, plan, split_gpus


@pytest.mark.parametrize(
    ("gpus", "parallel", "expected"),
    [(0, 1, (0, 0)), (1, 1, (0, 0)), (2, 1, (1, 1)), (4, 1, (1, 3)), (8, 1, (1, 7)), (9, 1, (2, 7)), (4, 2, (1, 2))],
)
def test_gpus_are_split_so_that_the_learner_gets_most(gpus: int, parallel: int, expected: tuple[int, int]) -> None:
    assert split_gpus(gpus, parallel) == expected


@pytest.mark.parametrize(("gpus", "expected"), [(0, (0, 0)), (1, (0, 0)), (2, (0, 2)), (4, (0, 4))])
def test_without_vllm_ranks_on_all_gpus_score_and_learn(gpus: int, expected: tuple[int, int]) -> None:
    assert split_gpus(gpus, vllm=False) == expected


def test_too_few_gpus_for_an_engine_and_a_learner() -> None:
    with pytest.raises(ConfigError, match=r"more than 2 GPUs for 1 engine of 2 GPUs and a learner, got 2"):
        split_gpus(2, 2)


def test_more_ranks_than_gpus_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 learner ranks take 2 GPUs, got --gpus 0"):
        split_gpus(0, learners=2)


def test_options_become_settings() -> None:
    alone = ["engines.count=0", "learners.count=0", "engines.tensor_parallel=1"]
    assert overrides(4, None, None, None, None) == ["engines.count=1", "learners.count=3", "device=cuda"]
    assert overrides(4, 2, None, None, None)[:2] == ["engines.count=2", "learners.count=2"]
    assert overrides(4, None, 2, 2, None)[:2] == ["engines.count=1", "learners.count=2"]
    assert overrides(1, None, None, None, None) == [*alone, "device=cuda", "runtime.lag=0"]
    assert overrides(0, None, None, None, None) == [*alone, "device=cpu", "runtime.lag=0"]
    assert overrides(None, 1, 2, None, "cpu") == ["engines.count=1", "learners.count=2", "device=cpu"]
    assert overrides(4, None, None, None, None, vllm=False)[:2] == ["engines.count=0", "learners.count=4"]
    assert overrides(4, 0, None, None, None)[:2] == ["engines.count=0", "learners.count=4"]
    assert overrides(None, None, None, None, None) == []


def test_a_run_whose_rollout_overlaps_updates_continues_in_one_process() -> None:
    lagging = config.load(None, ["runtime.lag=1", "engines.count=1", "learners.count=3", "device=cuda"])
    assert config.override(lagging, overrides(1, None, None, None, None)).runtime.lag == 0
    assert config.override(lagging, overrides(2, None, None, None, None)).runtime.lag == 1


def test_a_learner_in_the_driver_shares_one_gpu_and_no_more() -> None:
    words = ["device=cuda", "engines.count=1"]
    assert "engine and learner share the only GPU: 40% of its memory" in planned(Machine(gpus=1, cores=8), *words)
    assert config.load(None, [*words, "learners.count=1"]).engine_memory == 0.85
    assert "--learners 1" in planned(Machine(gpus=2, cores=8), *words)


@pytest.mark.parametrize(
    "words",
    [
        ["runtime.lag=1", "engines.count=1"],
        ["engines.tensor_parallel=2"],
        ["device=cuda:1", "engines.count=1", "learners.count=1"],
        ["runtime.lag=1", "learners.count=2"],
        ["device=cuda:1", "learners.count=2"],
    ],
)
def test_settings_that_contradict_are_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError):
        config.load(None, words)


@pytest.mark.parametrize(("engines", "learners"), [(2, 3), (1, 4)])
def test_options_that_take_more_gpus_than_given_are_refused(engines: int, learners: int) -> None:
    with pytest.raises(ConfigError, match="take 5 GPUs, got --gpus 4"):
        overrides(4, engines, learners, None, None)


def test_gpus_on_the_cpu_are_refused() -> None:
    with pytest.raises(ConfigError, match="--gpus goes with --device cuda, got --device cpu"):
        overrides(2, None, None, None, "cpu")


def planned(machine: Machine, *words: str) -> str:
    return plan(config.load(None, words), machine).describe()


def test_one_process() -> None:
    text = planned(Machine(gpus=0, cores=2), "device=cpu")
    assert text.startswith("one process on cpu, 2 threads")


def test_engines_and_ranks_share_the_cores() -> None:
    made = plan(config.load(None, ["device=cpu", "engines.count=1", "learners.count=2"]), Machine(gpus=0, cores=8))
    assert (made.engine_threads, made.learner_threads, made.fault) == (1, 3, None)


def test_ranks_without_engines_also_score() -> None:
    text = planned(Machine(gpus=4, cores=8), "device=cuda", "learners.count=4")
    assert text.splitlines()[1:] == ["4 learner ranks with 1 GPU each, which also score"]
    made = plan(config.load(None, ["device=cpu", "learners.count=2"]), Machine(gpus=0, cores=8))
    assert (made.engines, made.learners, made.learner_threads, made.fault) == (0, 2, 4, None)


def test_more_processes_than_cores_are_allowed_and_named() -> None:
    text = planned(Machine(gpus=0, cores=2), "device=cpu", "engines.count=1", "learners.count=2")
    assert "more processes than cores" in text


def test_gpus_that_are_not_here() -> None:
    text = planned(Machine(gpus=1, cores=16), "device=cuda", "engines.count=1", "learners.count=3")
    assert "cannot run here: expected 4 GPUs (engines: 1 x 1, learner ranks: 3), this machine has 1" in text


@pytest.mark.parametrize(("address", "own"), [("auto", False), ("10.0.0.1:6379", False), ("local", True), ("", True)])
def test_a_cluster_has_its_own_gpus(address: str, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    words = ["device=cuda", "engines.count=1", "learners.count=3"]
    assert ("cannot run" in planned(Machine(gpus=0, cores=16), *words)) == own
