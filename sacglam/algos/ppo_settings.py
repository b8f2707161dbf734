"""The settings of PPO, and what it needs. Reading a configuration must not import torch."""

from typing import ClassVar

from typing_extensions import override

from sacglam.config.algorithm import AlgoConfig, gradient_passes
from sacglam.config.section import Fraction, NonNegativeFloat, Positive, PositiveFloat
from sacglam.config.sections import CriticConfig


class PpoConfig(AlgoConfig):
    """Proximal policy optimisation, the baseline (paper, Table 1)."""

    rule: ClassVar[str] = "sacglam.algos.ppo:Ppo"
    on_policy: ClassVar[bool] = True
    has_q: ClassVar[bool] = False
    entropy_settings: ClassVar[str] = "algo.entropy_coef"
    update_settings: ClassVar[str] = "algo.epochs"

    type: str = "ppo"
    gae_lambda: Fraction = 0.99
    """Lambda of the generalised advantage estimates."""
    update_interval: Positive = 2048
    """Environment steps, over all copies together, collected for one update."""
    epochs: Positive = 16
    """Passes over the collected steps in each update."""
    entropy_coef: NonNegativeFloat = 0.01
    """Weight of the policy's entropy in the loss."""
    max_grad_norm: PositiveFloat | None = 0.5
    """Clip the norm of the whole gradient; `null`: no clipping."""

    @property
    @override
    def updates(self) -> int:
        return self.epochs * -(-self.update_interval // self.batch_size)

    @property
    @override
    def rows(self) -> int:
        return min(self.batch_size, self.update_interval)

    @override
    def rows_of_interval(self, phase: str) -> int:
        return self.update_interval * (1 if phase == "target" else self.epochs)

    @override
    def forward_passes(self, critic: CriticConfig) -> float:
        return gradient_passes(critic) * self.epochs * self.update_interval / self.updates
