"""Finished runs with numbers that can be worked out by hand, in the files of a real run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from sacglam.tools.experiments.plan import Run

EVERY = 100


class Finish(Protocol):
    """Writes what a run leaves: `evaluations` of success every 100 steps, the last one after training."""

    def __call__(
        self, run: Run, evaluations: Sequence[float], *, seconds: float = 1.0, heldout: float | None = None
    ) -> Path: ...


@pytest.fixture
def finish(tiny_run: Path) -> Finish:
    """Finishes a run with the summary and the lines of a real one, but for the numbers given."""
    real = json.loads((tiny_run / "summary.json").read_text())
    del real["config_sha256"]  # of another configuration
    line = json.loads((tiny_run / "metrics.jsonl").read_text().splitlines()[-1])

    def write(run: Run, evaluations: Sequence[float], *, seconds: float = 1.0, heldout: float | None = None) -> Path:
        folder, steps = run.directory.root, EVERY * len(evaluations)
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(run.config.model_copy(update={"device": "cpu"}).to_yaml())
        lines = [
            {
                **line,
                "env_steps": step,
                "updates": step,
                "seconds": seconds * step,
                "cpu_seconds": 3 * seconds * step,
                "buffer_hindsight_share": step / 1000,
                "eval_success/overall": value,
                "eval_success/grasp": value,
                "goal_share/grasp": 0.75,
                "goal_share/grow": 0.25,
            }
            for step, value in zip(range(EVERY, steps + 1, EVERY), evaluations, strict=True)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
        numbers: dict[str, Any] = {
            "success_random": both(0.3),
            "success_before": both(0.1),
            "success_after": both(evaluations[-1]),
            "success_sampled": both(evaluations[-1] / 2),
            "success_heldout": None if heldout is None else both(heldout),
            "env_steps": steps,
            "updates": steps,
            "train_seconds": seconds * steps,
            "train_cpu_seconds": 3 * seconds * steps,
            "seconds": {"forward": seconds * steps, "samples": 5.0, "evaluation": 7.0},
        }
        assert numbers.keys() <= real.keys()
        (folder / "summary.json").write_text(json.dumps(real | numbers))
        return folder

    return write


def both(success: float) -> dict[str, float]:
    """Success by goal type."""
    return {"overall": success, "grasp": success}
