"""What both fuzzers need: a tiny run, and how to run it often."""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, seed, settings
from matplotlib.figure import Figure

from sacglam import build, training
from sacglam.config import Config, override
from sacglam.config.sections import ModelConfig
from sacglam.errors import SacglamError
from tests import fuzz

TINY = {
    "steps": 32,
    "device": "cpu",
    "threads": 1,
    "env": {"name": "bitflip", "options": {"bits": 2}, "copies": 2},
    "model": {"lora": {"rank": 2}},
    "critic": {"hidden": [4]},
    "algo": {"update_interval": 8, "batch_size": 4, "updates_per_interval": 1, "warmup_updates": 1},
    "replay": {"capacity": 1000},
    "evaluation": {"episodes": 2, "every_steps": 16, "every_episodes": 2},
    "tracking": {"to": []},
}
"""A run of a quarter of a second."""
_AFFORDABLE = {
    "steps": 32,
    "threads": 1,
    "env.copies": 8,
    "model.lora.rank": 64,
    "critic.num_critics": 4,
    "algo.batch_size": 32,
    "algo.update_interval": 16,
    "algo.updates_per_interval": 2,
    "algo.epochs": 2,
    "replay.capacity": 100_000,
    "evaluation.episodes": 4,
    "evaluation.every_episodes": 4,
}


def fuzzed(examples: int) -> Callable[[Any], Any]:
    """Run a hypothesis test with so many examples, or those of `--fuzz`, and the seed of `--fuzz-seed`."""

    def decorate(test: Any) -> Any:
        chosen = settings(
            max_examples=fuzz.EXAMPLES or examples,
            deadline=None,
            database=None,
            phases=[Phase.explicit, Phase.generate],  # an example takes up to a second: too long to shrink
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )
        return chosen(seed(fuzz.SEED)(test))

    return decorate


def affordable(config: Config) -> Config | None:
    """`config` with its sizes cut down to what a test can run; None if it needs other processes or a GPU."""
    if config.engines.count or config.device not in ("auto", "cpu") or config.tracking.to not in ("auto", []):
        return None
    values = config.model_dump(mode="json")
    cuts = ["device=cpu", "tracking.to=[]"]
    for key, most in _AFFORDABLE.items():
        section, _, name = key.rpartition(".")
        found = values
        for part in filter(None, section.split(".")):
            found = found[part]
        if found.get(name, 0) > most:
            cuts.append(f"{key}={most}")
    if sum(config.critic.hidden) > 256:
        cuts.append("critic.hidden=[8]")
    if config.algo.update_interval > 16 or config.env.copies > 8:
        cuts += ["env.copies=2", "algo.update_interval=8"]
    return override(config, cuts)


def refused(error: SacglamError) -> str:
    """An outcome: the error says something, and not all it was given."""
    assert str(error).strip()
    assert len(str(error)) < 20_000
    return f"refused: {type(error).__name__}"


class Hang(BaseException):
    """No `Exception`, which the code at work might explain."""


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail where the block takes longer: it hangs."""

    def hang(number: int, frame: FrameType | None) -> None:
        raise Hang(f"this took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def quick_runs(monkeypatch: Any) -> None:
    """Load the built-in models once, and draw no curves: what is the same for all runs takes most of a tiny one.

    Tiny runs write checkpoints, logs and samples, too.
    """
    loaded: dict[str, Any] = {}
    load_model = build.load_model

    def load(settings: ModelConfig, device: torch.device) -> Any:
        if not settings.name.startswith("builtin"):
            return load_model(settings, device)
        key = settings.model_dump_json(exclude={"lora"})
        if key not in loaded:
            loaded[key] = load_model(settings, device)
        return copy.deepcopy(loaded[key])

    monkeypatch.setattr(build, "load_model", load)
    monkeypatch.setattr(training, "CHECKPOINT_STEPS", 8)
    monkeypatch.setattr(training, "LOG_STEPS", 8)
    monkeypatch.setattr(training, "SAMPLES_STEPS", 16)
    monkeypatch.setattr(Figure, "savefig", lambda self, file, **options: None)
