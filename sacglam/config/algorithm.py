"""The settings that all algorithms share, and what the rest of sacglam needs to know of them. Imports no torch."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from sacglam.config.section import Named, OpenFraction, Positive, PositiveFloat
from sacglam.config.sections import CriticConfig
from sacglam.plugins import find
from sacglam.types import Window

if TYPE_CHECKING:
    from sacglam.algos.base import Algorithm

_FINAL_SHARE = 0.1  # of a learning rate, left by `lr_decay` at the end of the budget


class AlgoConfig(Named):
    """An algorithm: its settings, the model and experience it needs, and how much work an update is.

    To add an algorithm, write a subclass. `algo.type` names it: a key of `shipped`, or `module:Class`.
    """

    key: ClassVar[str] = "algo"
    shipped: ClassVar[Mapping[str, str]] = {
        "sac": "sacglam.algos.sac_settings:SacConfig",
        "ppo": "sacglam.algos.ppo_settings:PpoConfig",
        "awac": "sacglam.algos.awac_settings:AwacConfig",
    }
    rule: ClassVar[str]
    """Its learning rule as `module:Class`: a subclass of `sacglam.algos.base.Algorithm`."""
    on_policy: ClassVar[bool] = False
    """Whether it learns only from its current policy's steps: no replay, no random actions, no lag."""
    learns_offline: ClassVar[bool] = False
    """Whether its own updates can learn from demonstrations alone; if not, initial updates clone the actions."""
    has_q: ClassVar[bool] = True
    """Whether its critic values each action, or only the state."""
    entropy_settings: ClassVar[str] = "algo.exploration"
    """The settings that messages suggest for more exploration."""
    update_settings: ClassVar[str] = "algo.updates_per_interval"
    """The settings that messages suggest for more learning from each step."""

    gamma: OpenFraction = 0.99
    """Discount per environment step."""
    reward_scale: PositiveFloat | None = None
    """Factor on the environment's own rewards (`env.reward: environment`).

    `null`: the largest factor that keeps the success reward and the discounted returns of random play within
    [-1, 1]."""
    batch_size: Annotated[int, Field(gt=0, le=1_000_000)] = 256
    """Steps in one gradient update, rounded up to whole windows with `td_lambda`."""
    micro_batch_size: Positive | None = None
    """Steps in one forward and backward pass; gradients are accumulated over the batch.

    `null`: the whole batch at once; in one process, half as many whenever the GPU runs out of memory."""
    actor_lr: PositiveFloat = 1e-4
    """Adam's learning rate for the adapters."""
    critic_lr: PositiveFloat = 1e-4
    """Adam's learning rate for the Q or V heads, and for the critic's own adapter, if it has one."""
    lr_decay: bool = False
    """Decay both learning rates, and a target entropy given as a percentage, linearly, to a tenth after as many
    updates as all intervals would make."""
    update_interval: Positive = 32
    """Environment steps in an interval, summed over all copies; the updates follow each interval."""
    max_grad_norm: PositiveFloat | None = None
    """Clip the norm of the whole gradient; `null`: no clipping."""

    @property
    def label(self) -> str:
        """Its name in reports, such as SAC."""
        return self.type.upper() if self.type in self.shipped else type(self).__name__.removesuffix("Config")

    @property
    def goal_rewards(self) -> bool:
        """Whether rewards are 1 for the goal and 0 otherwise, so values lie between 0 and 1."""
        return self.reward_scale is None

    @property
    def scale(self) -> float:
        """What rewards and values are multiplied by in losses: `reward_scale`, or 1 for a goal's rewards."""
        return self.reward_scale or 1.0

    @property
    def unreachable_value(self) -> float:
        """The value that a replay graph gives an action without a known path."""
        return 0.0 if self.goal_rewards else -math.inf

    @property
    @abstractmethod
    def updates(self) -> int:
        """Gradient updates per interval."""

    @property
    def rows(self) -> int:
        """Steps that one gradient update trains on."""
        return self.batch_size

    @property
    def window_length(self) -> int:
        """Number of steps in a window drawn from replay."""
        return 1

    @property
    def steps_per_row(self) -> int:
        """Maximum number of steps of a window that are trained on; a window is a row of a batch."""
        return 1

    @property
    def micro_batch_rows(self) -> int | None:
        """Rows in one forward and backward pass; None: all."""
        return self.micro_batch_size and max(1, self.micro_batch_size // self.steps_per_row)

    def learnt_steps(self, window: Window) -> int:
        """How many steps of a window are trained on."""
        return len(window)

    @property
    def exploration_share(self) -> float:
        """Probability, at each step of training, that the agent starts to explore."""
        return 0.0

    @property
    def warm_up(self) -> int:
        """Initial updates in which only the critic learns."""
        return 0

    def decay(self, updates: int, total_updates: int) -> float:
        """Factor that `lr_decay` applies to a rate after `updates` of all updates: from 1 down to a tenth."""
        return 1.0 - (1.0 - _FINAL_SHARE) * min(1.0, updates / total_updates) if self.lr_decay else 1.0

    def rows_of_interval(self, phase: str) -> int:
        """Steps that go through a phase of the clock in all updates of an interval."""
        return self.updates * self.batch_size

    @abstractmethod
    def forward_passes(self, critic: CriticConfig) -> float:
        """Minimum number of single-state forward passes per update; a backward pass counts as another one."""

    @property
    def rule_class(self) -> "type[Algorithm]":
        """The class that `rule` names."""
        return find(self.rule, "algo.rule")


def gradient_passes(critic: CriticConfig) -> int:
    """Forward passes per learnt state: forward and backward, and both again with a separate backbone."""
    return 4 if critic.backbone == "separate" else 2
