"""The base of all partners' settings; the partners that come with sacglam are in `sacglam/partners.py`."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from sacglam.config.section import Named

if TYPE_CHECKING:
    import numpy as np

    from sacglam.clock import PhaseClock
    from sacglam.partners import Partner

_HERE = "sacglam.partners"


class PartnerConfig(Named):
    """Who says what an episode achieved, between collecting and storing it. Evaluations always ask the environment."""

    key: ClassVar[str] = "partner"
    shipped: ClassVar[Mapping[str, str]] = {
        "environment": f"{_HERE}:EnvironmentConfig",
        "noisy": f"{_HERE}:NoisyConfig",
    }
    needs_whole_episodes: ClassVar[bool] = True
    """Whether it speaks once an episode has ended, too late for an on-policy algorithm."""

    @abstractmethod
    def build(self, rng: "np.random.Generator", clock: "PhaseClock") -> "Partner":
        """The partner of these settings; the state of `rng` is saved with the run."""
