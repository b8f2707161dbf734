"""Finished runs with numbers that can be worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from sacglam.tools.experiments.plan import Run

EVERY = 100


def finish(run: Run, evaluations: Sequence[float], *, seconds: float = 1.0, heldout: float | None = None) -> Path:
    """Write what a training leaves: `evaluations` of success every 100 steps, the last one after training."""
    run.folder.mkdir(parents=True)
    (run.folder / "config.yaml").write_text(run.config.model_copy(update={"device": "cpu"}).to_yaml())
    steps = [EVERY * (i + 1) for i in range(len(evaluations))]
    lines = [
        {
            "env_steps": step,
            "updates": step,
            "seconds": seconds * step,
            "buffer_hindsight_share": step / 1000,
            "eval_success/overall": value,
            "eval_success/grasp": value,
        }
        for step, value in zip(steps, evaluations, strict=True)
    ]
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run.folder / "summary.json").write_text(json.dumps(_summary(run, steps[-1], evaluations[-1], seconds)))
    if heldout is not None:
        (run.folder / "heldout.json").write_text(json.dumps({"success": {"overall": heldout}, "episodes": 10}))
    return run.folder


def _summary(run: Run, steps: int, success: float, seconds: float) -> dict[str, object]:
    return {
        "finished": True,
        "success_random": {"overall": 0.3, "grasp": 0.3},
        "success_before": {"overall": 0.1, "grasp": 0.1},
        "success_after": {"overall": success, "grasp": success},
        "spl_after": None,
        "evaluation_episodes": 500,
        "env_steps": steps,
        "updates": steps,
        "train_seconds": seconds * steps,
        "seconds": {"learning": seconds * steps, "evaluation": 7.0},
        "seed": run.seed,
        "threads": 1,
        "device": "cpu",
        "platform": "linux x86_64",
        "versions": {"torch": "2"},
    }
