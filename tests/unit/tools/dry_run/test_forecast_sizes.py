"""Parameters and memory by part: counted by hand, and in proportion to measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sacglam import config as configuration
from sacglam.build import build_model
from sacglam.config import Config
from sacglam.runtime.placement import Machine, plan
from sacglam.tools.dry_run import sizes
from sacglam.tools.dry_run.calibrate import Calibration, Sample
from sacglam.tools.dry_run.sizes import Process, Size, Sizes, memory, rows_in_one_pass, sizes_of

SIZES = Sizes(Size(1000, 2000), Size(10, 40), Size(5, 20), Size(15, 60))
MEASURED = Calibration(Sample(16, {}, 800), Sample(32, {}, 1600), Sample(64, {}, 6460))


def of(*overrides: str) -> Config:
    return configuration.override(configuration.Config(), ["device=cpu", *overrides])


def processes(config: Config, calibration: Calibration | None = MEASURED) -> list[Process]:
    return memory(config, plan(config, Machine(0, 8)), SIZES, calibration, 5)


def parts(process: Process) -> dict[str, int | None]:
    return {part.split(" (")[0]: size for part, size in process.parts.items()}


def test_parameters_of_the_built_in_model() -> None:
    """Two layers, 96 wide, 512 tokens; LoRA of rank 4 on all matrices; two heads 96-8-1, and as much in the target."""
    sizes = sizes_of(build_model(of("model.lora.rank=4", "critic.hidden=[8]")))
    layer = 4 * 96 * 96 + 3 * 96 * 256
    lora = 2 * 4 * (4 * (96 + 96) + 3 * (96 + 256))
    heads = 2 * (96 * 8 + 8 + 8 + 1)
    assert sizes.base.parameters == 512 * 96 + 2 * (layer + 2 * 96) + 96
    assert (sizes.adapters.parameters, sizes.heads.parameters, sizes.target.parameters) == (lora, heads, lora + heads)
    assert sizes.base.bytes == 4 * sizes.base.parameters
    assert sizes.trained_bytes == 4 * (lora + heads)


def test_one_process() -> None:
    """64 rows took 6,460 bytes with 60 of gradients: 100 a row. 16 states took 800."""
    measured = replace(MEASURED, update=Sample(64, {}, 3260))
    (alone,) = processes(of("algo.micro_batch_size=32"), measured)
    assert (alone.name, alone.count) == ("one process", 1)
    assert parts(alone) == {
        "Python and libraries": 5,
        "base weights": 2000,
        "LoRA adapters": 40,
        "critic heads": 20,
        "target: adapters and heads": 60,
        "gradients": 60,
        "optimizer: Adam's moments": 120,
        "activations of one micro-batch": 3200,  # of the 32 rows in one pass; scoring 32 states takes 1600
    }
    assert alone.known == 5505
    (alone,) = processes(of("algo.micro_batch_size=32"), replace(measured, scoring=Sample(16, {}, 1601)))
    assert [*parts(alone).items()][-1] == ("activations while scoring 32 states", 3202)
    assert alone.known == 5507


def test_hidden_states_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "kept_states_bytes", lambda: 3 * 2**20)
    lean = ("model.lora.layers=1",)
    distributed = processes(of(*lean, "engines.count=1", "learners.count=1"))
    held = [parts(each).get("hidden states of frozen layers") for each in [*processes(of(*lean)), *distributed]]
    assert held == [3 * 2**20, None, None, 3 * 2**20]  # one process; driver, engine, rank


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "moments"),
    [(0, 2000, 60, 120), (3, 666, 20, 40)],
)
def test_ranks_share_out_what_their_stage_says(stage: int, weights: int, gradients: int, moments: int) -> None:
    where = ["engines.count=2", "learners.count=3", f"learners.zero_stage={stage}"]
    driver, engine, rank = processes(of(*where))
    assert parts(driver) == {"Python and libraries": 5}
    assert parts(engine) == {"base weights": 2000, "KV cache": 2**30}
    found = parts(rank)
    assert (found["base weights"], found["gradients"], found["optimizer: Adam's moments"]) == (
        weights,
        gradients,
        moments,
    )
    assert found["activations of one micro-batch"] == 8600  # 86 of the 256 rows
    assert (engine.count, rank.count) == (2, 3)


def test_rows_in_one_pass() -> None:
    assert rows_in_one_pass(of(), 1) == 256
    assert rows_in_one_pass(of(), 3) == 86
    assert rows_in_one_pass(of("algo.micro_batch_size=32"), 3) == 32
    assert rows_in_one_pass(of("algo={type: ppo, update_interval: 64}"), 1) == 64  # of batches of 256


def test_vllm_on_a_cpu_has_the_cache_it_is_given() -> None:
    found = processes(of("engines.count=1"))
    assert [process.name for process in found] == ["driver and learner", "engine"]
    assert parts(found[1]) == {"base weights": 2000, "KV cache": 2**30}


def test_gpu_and_host_memory_are_listed_separately() -> None:
    where = plan(of("device=cuda"), Machine(1, 8))
    host, gpu = memory(of(), where, SIZES, MEASURED, 5)
    assert (host.name, host.known) == ("one process: host", 5)
    assert gpu.name == "one process: GPU"
    assert "Python and libraries" not in parts(gpu)
    assert parts(gpu)["base weights"] == 2000


def test_activations_are_unknown_without_a_measurement() -> None:
    (alone,) = processes(of(), None)
    assert parts(alone)["activations of one micro-batch"] is None
    assert alone.known == 5 + 2000 + 40 + 20 + 60 + 60 + 120
