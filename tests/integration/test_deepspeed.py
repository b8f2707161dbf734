"""One and two DeepSpeed ranks against plain torch: the same updates, the same checkpoints, the same faults."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel

from sacglam.config.sections import CriticConfig, ModelConfig
from sacglam.models.actor_critic import ActorValue
from sacglam.models.heads import PolicyHead
from sacglam.models.loading import load_model, lora_config
from sacglam.models.packed_lm import ACTOR, PackedLM
from sacglam.models.tokens import QueryTokenizer
from tests import launcher
from tests.integration import gpu_rank, rank
from tests.integration.rank import QUERIES, VARIANTS_AT, State

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"),
]
TOLERANCE = 1e-5
RANKS = [(1, 0), (2, 0), (2, 1)]
STAGES = (0, 3)  # of ZeRO


def start(
    world: int, folder: Path, saved: dict[int, State], program: ModuleType = rank, stages: tuple[int, ...] = STAGES
) -> list[dict[Any, Any]]:
    """Run all ranks of a world to their end; what each found."""
    (folder / "saved.pkl").write_bytes(pickle.dumps(saved))
    said = [folder / f"{number}.txt" for number in range(world)]
    ranks = []
    for number, file in enumerate(said):
        command = [sys.executable, "-m", program.__name__, *map(str, (number, world, folder, *stages))]
        with file.open("wb") as output:
            ranks.append(launcher.start(command, output, subprocess.STDOUT))
    try:
        codes = [process.wait(timeout=400) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    texts = [file.read_text() for file in said]
    assert codes == [0] * world, "\n".join(texts)
    assert not any(texts), f"expected nothing to be printed, got {texts}"
    return [pickle.loads((folder / f"{world}-{number}.pkl").read_bytes()) for number in range(world)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], dict[Any, Any]]:
    """What each rank of each world found. One rank resumes from what two saved, with the other stage."""
    folder = tmp_path_factory.mktemp("ranks")
    two = start(2, folder, {})
    [one] = start(1, folder, {0: two[0][3]["half"], 3: two[0][0]["half"]})
    return {(1, 0): one, (2, 0): two[0], (2, 1): two[1]}


@pytest.fixture(params=STAGES)
def stage(request: pytest.FixtureRequest) -> int:
    """One of ZeRO's stages."""
    return int(request.param)


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """The same trials without DeepSpeed."""
    return rank.trials(0, 0)


def gap(got: State, expected: State) -> float:
    """The largest difference between two states; both hold the same tensors."""
    assert got[0].keys() == expected[0].keys()
    assert got[1]["updates"] == expected[1]["updates"]
    gaps = [abs(got[1]["alpha"]["log_alpha"] - expected[1]["alpha"]["log_alpha"])]
    return max(gaps + [(tensor - expected[0][name]).abs().max().item() for name, tensor in got[0].items()])


def assert_same(got: State, expected: State) -> None:
    """To the last bit."""
    assert got[1] == expected[1]
    assert got[0].keys() == expected[0].keys()
    for name, tensor in got[0].items():
        assert torch.equal(tensor, expected[0][name]), name


def assert_close(got: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=TOLERANCE, abs=TOLERANCE)


@pytest.mark.parametrize(("world", "number"), RANKS)
def test_ranks_learn_as_one_process_does(world: int, number: int, stage: int, found: Any, plain: Any) -> None:
    own = found[world, number][stage]
    assert_close(own["metrics"], plain["metrics"])
    for moment in ("half", "end"):
        assert gap(own[moment], plain[moment]) <= TOLERANCE
    moved = max((t - plain["half"][0][n]).abs().max().item() for n, t in plain["end"][0].items() if "adam" not in n)
    assert moved > 20 * TOLERANCE, "the weights must move by far more than the tolerance"


def test_ranks_agree_to_the_last_bit(stage: int, found: Any) -> None:
    first, second = found[2, 0][stage], found[2, 1][stage]
    assert first["metrics"] == second["metrics"]
    assert_same(first["end"], second["end"])
    assert first["adapter"] == second["adapter"]
    assert first["exported"] == second["exported"]


@pytest.mark.parametrize(("world", "number"), RANKS)
def test_a_resume_on_as_many_ranks_is_exact(world: int, number: int, stage: int, found: Any) -> None:
    own = found[world, number][stage]
    assert_same(own["resumed"], own["end"])


@pytest.mark.parametrize(("world", "number"), RANKS)
def test_moments_of_another_form_are_refused(world: int, number: int, stage: int, found: Any) -> None:
    assert found[world, number][stage]["another form"].startswith("1 tensors do not fit this model")


def test_a_resume_on_fewer_ranks_and_without_deepspeed(stage: int, found: Any, plain: Any) -> None:
    assert gap(found[1, 0][stage]["resumed elsewhere"], plain["end"]) <= TOLERANCE
    assert gap(rank.resumed(0, 0, found[2, 0][stage]["half"]), plain["end"]) <= TOLERANCE


@pytest.mark.parametrize(("world", "number"), RANKS)
def test_a_fault_in_one_share_stops_every_rank(world: int, number: int, stage: int, found: Any) -> None:
    own = found[world, number][stage]
    said, state = own["after fault"]
    assert "expected finite losses" in said
    assert "critic_loss" in said
    assert_same(state, own["end"])


@pytest.mark.parametrize(("world", "number"), RANKS)
def test_after_a_fault_a_rank_with_terminal_rows_alone(
    world: int, number: int, stage: int, found: Any, plain: Any
) -> None:
    """It keeps the others waiting for no forward, and nothing is left of the gradient that was at fault."""
    assert_close(found[world, number][stage]["one-sided"], plain["one-sided"])


@pytest.mark.parametrize(("world", "number"), RANKS)
def test_base_weights_are_sharded_with_stage_3(world: int, number: int, stage: int, found: Any, plain: Any) -> None:
    elements = found[world, number][stage]["whole elements"]
    assert elements == (0 if stage == 3 else plain["whole elements"])


def test_other_models_and_critics(found: Any) -> None:
    for name in rank.VARIANTS:
        expected = rank.variant(0, 0, name)
        for which in RANKS[1:]:
            for stage in STAGES:
                if name in VARIANTS_AT[stage]:
                    assert_close(found[which][stage, name], expected)


def test_the_adapter_is_the_policy_that_learns(stage: int, found: Any, plain: Any, tmp_path: Path) -> None:
    own = found[2, 1][stage]
    assert own["adapter"].version == rank.UPDATES
    assert own["adapter"].files.items() <= own["exported"].items()
    assert own["exported"].keys() == plain["exported"].keys()
    for name, content in own["adapter"].files.items():
        (tmp_path / name).write_bytes(content)
    scores = scorer_of(tmp_path).log_policy(QUERIES)
    for got, expected, single in zip(scores, own["log_policy"], plain["log_policy"], strict=True):
        np.testing.assert_allclose(got, expected, atol=TOLERANCE)
        np.testing.assert_allclose(expected, single, atol=TOLERANCE)


def scorer_of(folder: Path) -> ActorValue:
    """A scorer over the base model with the adapter merged in by peft."""
    loaded = load_model(ModelConfig(), torch.device("cpu"))
    merged = PeftModel.from_pretrained(loaded.model, str(folder)).merge_and_unload()
    lm = PackedLM(merged, lora_config(ModelConfig(), merged.config), [ACTOR])
    return ActorValue(lm, QueryTokenizer(loaded.tokenizer, loaded.max_tokens), PolicyHead(), CriticConfig())


def test_collectives_wait_no_longer_than_told(found: Any) -> None:
    assert [found[which]["timeout_s"] for which in RANKS] == [rank.TIMEOUT_S] * 3


def test_a_rank_left_alone_fails_instead_of_waiting(found: Any) -> None:
    assert "RuntimeError" in found[2, 0]["alone"]


@pytest.fixture(scope="module")
def on_gpus(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], dict[Any, Any]]:
    """What each rank of each world found with a fake GPU."""
    folder = tmp_path_factory.mktemp("gpu_ranks")
    two = start(2, folder, {}, gpu_rank)
    [one] = start(1, folder, {}, gpu_rank, (0,))
    return {(1, 0): one, (2, 0): two[0], (2, 1): two[1]}


@pytest.fixture(scope="module")
def one_process() -> dict[str, Any]:
    """The same on the CPU without DeepSpeed."""
    return gpu_rank.trial(0, 0, "cpu")


@pytest.mark.parametrize(
    ("world", "number", "stage"), [(1, 0, 0), *((2, n, stage) for n in (0, 1) for stage in STAGES)]
)
def test_ranks_on_gpus_learn_and_resume_without_a_mix_up_or_a_timer(
    world: int, number: int, stage: int, on_gpus: Any, one_process: Any
) -> None:
    own = on_gpus[world, number][stage]
    assert_close(own["metrics"], one_process["metrics"])
    assert gap(own["end"], one_process["end"]) <= TOLERANCE
    assert_same(own["resumed"], own["end"])
    assert "synchronize" not in own["waits"]
    assert own["broadcasts"] == 0
    for got, expected in zip(own["policy"], one_process["policy"], strict=True):
        np.testing.assert_allclose(got, expected, atol=TOLERANCE)
