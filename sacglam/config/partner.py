"""The base of all partners' settings; the partners that come with sacglam are in `sacglam/partners.py`."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Self

from sacglam.config.section import Named

if TYPE_CHECKING:
    import numpy as np

    from sacglam.clock import PhaseClock
    from sacglam.partners import Judges, Partner
    from sacglam.prompt import Prompt

_HERE = "sacglam.partners"


class PartnerConfig(Named):
    """Who says what an episode achieved, between collecting and storing it. Evaluations always ask the environment."""

    key: ClassVar[str] = "partner"
    shipped: ClassVar[Mapping[str, str]] = {
        "environment": f"{_HERE}:EnvironmentConfig",
        "noisy": f"{_HERE}:NoisyConfig",
        "judge": f"{_HERE}:JudgeConfig",
        "scored": f"{_HERE}:ScoredConfig",
    }
    needs_whole_episodes: ClassVar[bool] = True
    """Whether it speaks once an episode has ended, too late for an on-policy algorithm."""

    judge: ClassVar[str | None] = None
    """What learns for it next to the agent, as `module:Class`, on an adapter of its own (`sacglam.learner.judge`)."""

    @property
    def imagines(self) -> bool:
        """Whether it may name goals that the environment does not know."""
        return False

    @abstractmethod
    def build(self, rng: "np.random.Generator", clock: "PhaseClock", prompt: "Prompt", judges: "Judges") -> "Partner":
        """The partner of these settings; the state of `rng` is saved with the run. `judges` has what learns for it."""

    def steady(self) -> Self:
        """The same partner as it is in the middle of a run."""
        return self
