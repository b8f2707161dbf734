"""How a training is watched, saved and placed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sacglam.config.section import NonNegative, OpenFraction, Positive, PositiveFloat, Section


class EvalConfig(Section):
    """Evaluation on fresh episodes, outside the training clock."""

    episodes: Positive = 500
    """Fresh episodes before and after the training, and after it on held-out goals where the environment has some."""
    every_steps: NonNegative = 0
    """Environment steps between evaluations during the training; 0: none."""
    every_episodes: Positive = 200
    """Episodes of those."""
    heldout: bool = False
    """Let those play as many held-out goals, too, where the environment has some."""


class CheckpointConfig(Section):
    """Checkpoints for resuming."""

    every_steps: Positive = 2_000
    """Environment steps between checkpoints."""
    keep: Annotated[int, Field(ge=2)] = 2
    """Checkpoints kept; never fewer than two, so that a damaged one has a predecessor."""


class EnginesConfig(Section):
    """The engines that score the rollout's actions, each in a process of its own; vLLM or the packed forward."""

    type: Literal["auto", "vllm", "packed"] = "auto"
    """`vllm`, `packed` (our own forward pass, for any model), or `auto`: vLLM where it can serve it."""
    count: NonNegative = 0
    """Engines; 0: the learner's own process scores, with the very weights that learn."""
    tensor_parallel: Positive = 1
    """GPUs that one engine is spread over."""
    gpu_memory: OpenFraction = 0.85
    """Share of a GPU's memory that an engine takes (weights and prefix cache)."""
    cpu_cache_gib: PositiveFloat = 1.0
    """Prefix cache of an engine without a GPU, in GiB."""
    timeout_s: PositiveFloat = 60.0
    """Seconds without an answer after which an engine counts as hung."""
    start_timeout_s: PositiveFloat = 600.0
    """Seconds that an engine may take to start."""
    max_restarts: NonNegative = 10
    """Times that the engines together may be restarted in one run before it ends."""
    parity_every: Positive = 50
    """Adapters between two checks that the engines' policy is the learner's; the first one is always checked."""
    parity_tolerance: PositiveFloat | None = None
    """Largest total variation between both policies on a fixed state; None: 1e-4 in float32, 0.05 in bfloat16."""


class LearnersConfig(Section):
    """The DeepSpeed ranks that learn."""

    count: NonNegative = 0
    """Ranks; 0: one learner in the driver's process, without DeepSpeed."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 1
    """What the ranks share out (ZeRO): 0 nothing, 1 the optimizer's state, 2 gradients, 3 the base weights, too."""
    timeout_s: PositiveFloat = 1800.0
    """Seconds that an interval's updates may take before the learner counts as hung."""


class RuntimeConfig(Section):
    """Where the processes run and how they overlap."""

    lag: Annotated[int, Field(ge=0, le=1)] = 0
    """Intervals by which the engines' adapter may trail the learner: 1 lets the next rollout run during the update."""
    address: str | None = None
    """Address of a running Ray cluster, or `auto`; None: a Ray of its own on this machine, if one is needed."""


class TrackingConfig(Section):
    """Aim, the run explorer, and what is kept for it beside the metrics."""

    aim: bool | Literal["auto"] = "auto"
    """Mirror the run into Aim while it trains; `auto`: where Aim is installed."""
    repo: str | None = None
    """Folder that holds the Aim repository (`.aim`); None: the folder that holds the run's."""
    samples_every_steps: NonNegative = 1_600
    """Environment steps between lines of samples.jsonl: episodes as text, with probabilities and Q; 0: none."""
    samples_episodes: Positive = 4
    """Episodes of each line."""
