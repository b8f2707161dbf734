"""The settings of SAC, and what it needs. Reading a configuration must not import torch."""

import math
import re
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator
from typing_extensions import override

from sacglam.config.algorithm import AlgoConfig, gradient_passes
from sacglam.config.section import (
    Fraction,
    NonNegative,
    NonNegativeFloat,
    OpenFraction,
    Positive,
    PositiveFloat,
    Section,
)
from sacglam.config.sections import CriticConfig
from sacglam.types import Window


def _target_entropy(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"(\d{1,2}(\.\d{1,3})?|100)%", value):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise ValueError("expected a number of nats, or a percentage such as 22%")


class AlphaConfig(Section):
    """The entropy coefficient; defaults are those of the paper's SAC + HER (Table 3)."""

    init: PositiveFloat = 0.05
    """Initial value."""
    target_entropy: Annotated[float | str, BeforeValidator(_target_entropy)] = 0.01
    """Mean policy entropy at which alpha stays constant: in nats, or as a share of the random policy's, such as `22%`.

    A share decays with the learning rates, if they do."""
    lr: NonNegativeFloat = 2e-3
    """Adam's learning rate on log alpha; 0 keeps alpha fixed."""

    def target(self, random: float, decay: float = 1.0) -> float:
        """The target entropy in nats: as set, or a share of `random`, the random policy's entropy, times `decay`."""
        value = self.target_entropy
        return float(value.rstrip("%")) / 100 * random * decay if isinstance(value, str) else value


class OffPolicyConfig(AlgoConfig):
    """What algorithms with SAC's critic and replay have in common."""

    n_step: Positive = 3
    """Rewards summed before bootstrapping (Eq. 3): the length of a sampled window."""
    td_lambda: Fraction | None = None
    """Learn every step of a window from its lambda-return, without the policy's entropy; `null`: only the first
    step, from its n-step return with entropy (Eq. 3)."""
    exploration: Fraction = 0.0
    """Probability, at each step, of starting to explore until an untried action has been taken. In states that no other
    episode has seen, exploration starts only for goals of types never achieved."""
    updates_per_interval: Positive = 2
    """Gradient updates per interval."""
    critic_weight: PositiveFloat = 1.0
    """Weight of the critic's loss relative to the actor's, in the adapter that they share."""
    tau: OpenFraction = 0.005
    """Step of the target's exponential moving average at each update."""
    warmup_updates: NonNegative = 20
    """Initial updates in which only the critic learns."""

    @property
    @override
    def updates(self) -> int:
        return self.updates_per_interval

    @property
    @override
    def window_length(self) -> int:
        return self.n_step

    @property
    @override
    def steps_per_row(self) -> int:
        return 1 if self.td_lambda is None else self.n_step

    @override
    def learnt_steps(self, window: Window) -> int:
        return min(len(window), self.steps_per_row)

    @property
    @override
    def exploration_share(self) -> float:
        return self.exploration

    @property
    @override
    def warm_up(self) -> int:
        return self.warmup_updates

    @override
    def forward_passes(self, critic: CriticConfig) -> float:
        """Passes with gradient at each step, and passes for policy and target at the end of a window.

        The latter share one pass if the target reads the online adapter (`critic.target_backbone: online` on a shared
        or frozen backbone). With `td_lambda`, a target with its own adapter also takes a pass at each step.
        """
        own_pass = critic.backbone == "separate" or critic.target_backbone == "adapter"
        at_each_step = critic.target_backbone == "adapter" and self.td_lambda is not None
        bootstrap = (1 + own_pass) / self.steps_per_row + at_each_step
        return (gradient_passes(critic) + bootstrap) * self.batch_size


class SacConfig(OffPolicyConfig):
    """Soft actor-critic (paper, Tables 2 and 3)."""

    rule: ClassVar[str] = "sacglam.algos.sac:Sac"
    entropy_settings: ClassVar[str] = "algo.alpha.target_entropy and algo.alpha.init"

    type: str = "sac"
    self_imitation: NonNegativeFloat = 0.0
    """Weight of self-imitation: of actions whose episode, real or relabelled, returned more than the state's value."""
    alpha: AlphaConfig = AlphaConfig()

    @property
    def soft_target(self) -> bool:
        """Whether values in the critic's target include the policy's entropy (Eq. 3)."""
        return self.td_lambda is None
