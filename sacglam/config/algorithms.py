"""The learning rules, and what SAC remembers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from sacglam.config.section import Fraction, NonNegative, OpenFraction, Positive, PositiveFloat, Section


class AlphaConfig(Section):
    """The entropy coefficient; defaults are those of the paper's SAC + HER (Table 3)."""

    init: PositiveFloat = 0.05
    """First value."""
    target_entropy: float = 0.01
    """Mean policy entropy, in nats, at which alpha rests."""
    lr: Annotated[float, Field(ge=0)] = 2e-3
    """Adam's learning rate on log alpha; 0 keeps alpha fixed."""


class SacConfig(Section):
    """Soft actor-critic (paper, Tables 2 and 3)."""

    type: Literal["sac"] = "sac"
    gamma: OpenFraction = 0.99
    """Discount per environment step."""
    n_step: Positive = 3
    """Rewards summed before bootstrapping (Eq. 3)."""
    batch_size: Positive = 256
    """Transitions in one update."""
    micro_batch_size: Positive | None = None
    """Rows in one forward and backward; gradients are accumulated over the batch. None: the whole batch at once."""
    update_interval: Positive = 32
    """Environment steps, over all copies together, between updates."""
    updates_per_interval: Positive = 2
    """Gradient updates at each interval."""
    actor_lr: PositiveFloat = 1e-4
    """Adam's learning rate for the adapters."""
    critic_lr: PositiveFloat = 1e-4
    """Adam's learning rate for the critic heads (and the critic's own adapter, if it has one)."""
    lr_decay: bool = False
    """Let both learning rates fall linearly to a tenth over the budget."""
    critic_weight: PositiveFloat = 1.0
    """Weight of the critic's loss beside the actor's, for the adapter that they share."""
    max_grad_norm: PositiveFloat | None = None
    """Clip the norm of the whole gradient; None: no clipping, as in the paper."""
    tau: OpenFraction = 0.005
    """Step of the target's exponential moving average at each update."""
    warmup_updates: NonNegative = 20
    """First updates, in which only the critic learns."""
    alpha: AlphaConfig = AlphaConfig()


class PpoConfig(Section):
    """Proximal policy optimisation, the baseline (paper, Table 1)."""

    type: Literal["ppo"] = "ppo"
    gamma: OpenFraction = 0.99
    """Discount per environment step."""
    gae_lambda: Fraction = 0.99
    """Lambda of the generalised advantage estimates."""
    update_interval: Positive = 2048
    """Environment steps, over all copies together, that are collected for one update."""
    epochs: Positive = 16
    """Times that each collected step is learnt from."""
    batch_size: Positive = 256
    """Steps in one gradient update."""
    micro_batch_size: Positive | None = None
    """Rows in one forward and backward; gradients are accumulated over the batch. None: the whole batch at once."""
    clip: PositiveFloat = 0.2
    """The probability ratio counts within 1 +- this."""
    entropy_coef: Annotated[float, Field(ge=0)] = 0.01
    """Weight of the policy's entropy in the loss."""
    value_coef: PositiveFloat = 0.5
    """Weight of the value loss."""
    normalise_advantages: bool = True
    """Shift and scale an interval's advantages to mean 0 and deviation 1."""
    actor_lr: PositiveFloat = 1e-4
    """Adam's learning rate for the adapters."""
    critic_lr: PositiveFloat = 1e-4
    """Adam's learning rate for the value head (and the critic's own adapter, if it has one)."""
    lr_decay: bool = False
    """Let both learning rates fall linearly to a tenth over the budget."""
    max_grad_norm: PositiveFloat | None = 0.5
    """Clip the norm of the whole gradient; None: no clipping."""

    @property
    def updates_per_interval(self) -> int:
        """Gradient updates at each interval."""
        return self.epochs * -(-self.update_interval // self.batch_size)


def _algorithm(values: Any) -> Any:
    """The algorithm's name in plain values or in a section; SAC where nothing is said."""
    if isinstance(values, dict):
        return values.get("type", "sac")
    return values.type if isinstance(values, SacConfig | PpoConfig) else "sac"


ALGORITHMS: Mapping[str, type[Section]] = {"sac": SacConfig, "ppo": PpoConfig}
AlgoConfig = Annotated[Annotated[SacConfig, Tag("sac")] | Annotated[PpoConfig, Tag("ppo")], Discriminator(_algorithm)]


class ReplayConfig(Section):
    """The replay buffer and hindsight relabelling; SAC's alone."""

    capacity: Positive = 100_000
    """Transitions kept; the oldest go first."""
    min_size: Positive = 256
    """Transitions needed before the first update."""
    hindsight: bool = True
    """Add every episode once more for each goal it achieved (strategy `future`)."""
    sampling: Literal["uniform", "ratio", "prior"] = "ratio"
    """`uniform` over the buffer, a fixed share of relabelled transitions, or goal types as in the environment."""
    hindsight_ratio: Fraction = 0.5
    """Share of relabelled transitions in a batch with `sampling: ratio`."""
