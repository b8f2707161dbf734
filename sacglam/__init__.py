"""SAC-GLAM: online reinforcement learning for LLM agents that choose among candidate actions.

    import sacglam
    summary = sacglam.train(sacglam.load_config())
    agent = sacglam.load_agent(summary["run_dir"])

Importing this package is free: its contents are loaded at first use.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sacglam import envs
    from sacglam.agent import load_agent
    from sacglam.config import Config
    from sacglam.config import load as load_config
    from sacglam.tools.tracking.sidecar import Callback

__all__ = ["Config", "envs", "load_agent", "load_config", "train"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "envs":
        return import_module("sacglam.envs")
    if name == "load_agent":
        return import_module("sacglam.agent").load_agent
    if name in ("Config", "load_config"):
        return getattr(import_module("sacglam.config"), name.removesuffix("_config"))
    raise AttributeError(f"module 'sacglam' has no attribute {name!r}")


def train(config: Config, out: str | Path | None = None, callback: Callback | None = None) -> dict[str, Any]:
    """Train in the new folder `out` (by default one under `runs/`); returns the run's summary, with `run_dir`.

    `callback` is called with each line of `metrics.jsonl`, a mapping of numbers by name such as `env_steps`, `success`
    and `eval_success/overall`. If it returns true, the run ends with a checkpoint, as after Ctrl-C: its summary's
    `finished` is false, and `sacglam train --resume` continues it. An exception in the callback also ends the run.

    Raises:
        SacglamError: the folder holds a run, the model or the environment cannot be used, the loss diverged, ...
    """
    from sacglam.runs import directory
    from sacglam.tools.tracking.sidecar import sidecar_for
    from sacglam.training import train as run

    folder = Path(out) if out is not None else directory.fresh(config.seed)
    return {**run(config, folder, tracker=partial(sidecar_for, callback=callback)), "run_dir": str(folder)}
