"""The whole state of a training as a checkpoint, and back."""

from __future__ import annotations

from dataclasses import asdict

import torch

from sacglam.assembly import Parts
from sacglam.errors import CheckpointError
from sacglam.runs.checkpoint import Checkpoint
from sacglam.runs.progress import MetricsWindow, Progress

_FORMAT = 1


def snapshot(parts: Parts, progress: Progress, window: MetricsWindow) -> Checkpoint:
    """Weights, targets, optimizer, alpha, replay, open episodes, all random state, and progress."""
    tensors, learner = parts.learners.state()
    columns, replay = parts.experience.state()
    return Checkpoint(
        tensors={**tensors, "torch_rng": torch.get_rng_state()},
        arrays=columns,
        values={
            "format": _FORMAT,
            "learner": learner,
            "replay": replay,
            "rollout": parts.rollout.state(),
            "starts_rng": parts.starts.rng.bit_generator.state,
            "policy_rng": parts.policy.rng.bit_generator.state,
            "window": window.state(),
            "progress": asdict(progress),
            "clock": parts.clock.seconds,
        },
    )


def restore(parts: Parts, window: MetricsWindow, checkpoint: Checkpoint) -> Progress:
    """Put freshly built parts into the state of `checkpoint`; the progress it was taken at.

    Raises:
        CheckpointError: it was written by another version of sacglam, or for another model.
    """
    values = checkpoint.values
    if values["format"] != _FORMAT:
        raise CheckpointError(
            f"expected checkpoint format {_FORMAT}, got {values['format']}; use the sacglam that wrote it"
        )
    tensors = dict(checkpoint.tensors)
    torch.set_rng_state(tensors.pop("torch_rng"))
    parts.learners.load_state(tensors, values["learner"])
    parts.experience.load_state(checkpoint.arrays, values["replay"])
    parts.rollout.restore(values["rollout"])
    parts.starts.rng.bit_generator.state = values["starts_rng"]
    parts.policy.rng.bit_generator.state = values["policy_rng"]
    parts.clock.restore(values["clock"])
    window.load_state(values["window"])
    return Progress(**values["progress"])
