"""Random combinations of settings: what is accepted trains, and once stopped and resumed ends as if never stopped."""

from __future__ import annotations

import json
import math
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from sacglam import config as configuration
from sacglam.config import Config
from sacglam.errors import SacglamError
from sacglam.runs.display import Display
from sacglam.runs.exported import MODEL_CARD
from sacglam.training import resume, train
from tests import fuzz
from tests.fuzz.common import TINY, quick_runs, refused, within
from tests.integration.test_resume import assert_same_end

ENVIRONMENTS = {
    ("bitflip", "{bits: 2}"): 8,
    ("bitflip", "{bits: 3, max_steps: 4, text: furniture}"): 4,
    ("playground_simple", "{max_steps: 4}"): 4,
    ("playground", "{max_steps: 4, num_objects: 4}"): 4,
    ("gymnasium:FrozenLake-v1", "{kwargs: {is_slippery: false}, max_steps: 4}"): 3,
    ("gymnasium:Taxi-v4", "{max_steps: 4, practice: true}"): 2,
    ("gymnasium:CliffWalking-v1", "{max_steps: 4}"): 2,
    ("babyai", "{tasks: [go_to, pick_up], room_size: 5, num_distractors: 1, max_steps: 4}"): 1,
    ("textworld", "{games: 1, max_steps: 4}"): 1,
}
"""How often each is drawn, the slow ones seldom."""
COMMON: dict[str, list[Any]] = {
    "seed": [1, 2, 2**63 - 1],
    "env.copies": [1, 2, 4],
    "model.name": ["builtin", "builtin-t5"],
    "model.dtype": ["bfloat16"],
    "model.gradient_checkpointing": ["true"],
    "model.quantize": ["none", "none", "nf4"],  # slow
    "model.lora.rank": [4],
    "model.lora.layers": [1],
    "prompt.history": [1, 3],
    "prompt.step": ["'{action}; '"],
    "prompt.template": [
        "'{history}{goal}: {observation} {actions}. Action:'",
        "'{observation}\nGoal: {goal}\nAction:'",
    ],
    "policy.length_normalised": ["true"],
    "policy.score_eos": ["true"],
    "policy.temperature": [0.5, 4, "auto"],
    "critic.backbone": ["frozen", "separate"],
    "critic.hidden": ["[]", "[8, 8]"],
    "algo.gamma": [0.5, 1],
    "algo.batch_size": [6],
    "algo.micro_batch_size": [3],
    "algo.update_interval": [4, 12],
    "algo.actor_lr": [1e-2],
    "algo.critic_lr": [1e-2],
    "algo.lr_decay": ["true"],
    "algo.max_grad_norm": ["null", 0.1],
    "goals": ["progress", "{type: progress, by: goal}"],
    "evaluation.every_steps": [0, 8],
}
SAC: dict[str, list[Any]] = {
    "critic.input": ["observation"],
    "critic.num_critics": [1, 3],
    "critic.score_weight": [0.2],
    "critic.target_backbone": ["online"],
    "algo.n_step": [1, 6],
    "algo.td_lambda": [0, 0.9, 1],
    "algo.self_imitation": [2],
    "algo.exploration": [0.3, 1],
    "algo.updates_per_interval": [2],
    "algo.critic_weight": [0.5],
    "algo.tau": [0.1, 1],
    "algo.warmup_updates": [0, 3],
    "algo.alpha.init": [1],
    "algo.alpha.target_entropy": [-1, 0.5, "30%"],
    "algo.alpha.lr": [0, 0.1],
    "replay.capacity": [10],
    "replay.random_steps": [8],
    "replay.hindsight": [
        "none",
        "uniform",
        "prior",
        "{type: ratio, share: 0.3}",
        "{type: future, share: 1}",
        "{type: future, share: 0}",
        "{type: future, share: 0.3}",
        "{type: graph, share: 0.3}",
        "{type: graph, share: 1}",
    ],
}
PPO: dict[str, list[Any]] = {
    "algo.gae_lambda": [0, 1],
    "algo.epochs": [1],
    "algo.entropy_coef": [0],
}
AWAC = {
    "algo.temperature": [0.01, 1],
    **{key: SAC[key] for key in SAC if "alpha" not in key and "imitation" not in key},
}
ALGORITHMS = {
    "sac": ("", SAC),
    "ppo": ("algo={type: ppo, update_interval: 8, batch_size: 4, epochs: 2}", PPO),
    "awac": ("algo={type: awac, update_interval: 8, batch_size: 4}", AWAC),
}


class Stopping(Display):
    """Counts what a run reports, and asks it to stop at the report of this number, as Ctrl-C does."""

    def __init__(self, at: int = 0) -> None:
        self._at = at
        self.reports: list[str] = []
        self._stage = ""

    @override
    def stage(self, name: str, total: int) -> None:
        self._stage = name

    @override
    def advance(self, done: int) -> None:
        self.reports.append(self._stage)
        if len(self.reports) == self._at:
            signal.raise_signal(signal.SIGINT)


def combination(rng: random.Random) -> Config:
    """The tiny run with another environment and algorithm, and others of a third of the settings.

    Raises:
        ConfigError: these exclude each other.
    """
    [(algorithm, settings)] = rng.choices(list(ALGORITHMS.values()), weights=[5, 4, 2])
    [(name, options)] = rng.choices(list(ENVIRONMENTS), list(ENVIRONMENTS.values()))
    overrides = [
        "steps=16",
        "evaluation.episodes=1",
        f"env.name={name}",
        f"env.options={options}",
        *filter(None, [algorithm]),
    ]
    for key, values in {**COMMON, **settings}.items():
        if rng.random() < 1 / 3:
            overrides.append(f"{key}={rng.choice(values)}")
    return configuration.override(Config.model_validate(TINY), overrides)


def finite(value: Any) -> bool:
    """Whether all numbers in JSON values are."""
    if isinstance(value, dict | list):
        return all(map(finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def lines(file: Path) -> list[dict[str, Any]]:
    """Its lines without their times."""
    read = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [{key: value for key, value in line.items() if "seconds" not in key} for line in read]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_runs(monkeypatch)


@pytest.mark.slow
def test_stopped_and_resumed_they_end_as_if_they_had_not_been(tmp_path: Path) -> None:
    tried, number, faults = 0, 0, list[Exception]()
    while tried < (fuzz.EXAMPLES or 6):
        number += 1
        rng = random.Random(f"{fuzz.SEED} {number}")
        try:
            with within(600):
                outcome = stop_and_resume(combination(rng), rng, tmp_path / str(number))
        except SacglamError as error:
            outcome = refused(error)
        except Exception as error:
            error.add_note(f"combination {number} of seed {fuzz.SEED}")
            faults.append(error)
            outcome = "FAULT"
        tried += not outcome.startswith("refused")
        fuzz.COUNTS[f"combinations: {outcome}"] += 1
    if faults:
        raise ExceptionGroup("combinations", faults)


def stop_and_resume(config: Config, rng: random.Random, folder: Path) -> str:
    """Train it whole, and once more with a stop somewhere, three times out of four in training; where that was.

    Raises:
        SacglamError: it cannot be trained, and this said so before its first step.
    """
    whole, stopped, seen = folder / "whole", folder / "stopped", Stopping()
    try:
        train(config, whole, seen)
    except SacglamError:
        assert "training" not in seen.reports
        raise
    anywhere = rng.random() < 1 / 4
    stop = rng.choice([at for at, stage in enumerate(seen.reports, 1) if anywhere or stage == "training"])
    assert not train(config, stopped, Stopping(stop))["finished"]
    assert resume(stopped)["finished"]
    assert_same_end(stopped, whole, lines=len(lines(whole / "metrics.jsonl")))
    assert lines(stopped / "samples.jsonl") == lines(whole / "samples.jsonl")
    for file in (whole / "adapter").iterdir():
        if file.name in (MODEL_CARD, "summary.json"):  # with the run's hash, and seconds
            continue
        assert (stopped / "adapter" / file.name).read_bytes() == file.read_bytes(), file.name
    assert finite([lines(whole / "metrics.jsonl"), lines(whole / "samples.jsonl")])
    shutil.rmtree(folder)
    return f"{config.algo.type}, stopped in {seen.reports[stop - 1]}, resumed to the same end"
