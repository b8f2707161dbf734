"""The settings of AWAC: SAC's critic and a different actor. Reading a configuration imports no torch."""

from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from sacglam.algos.sac_settings import OffPolicyConfig
from sacglam.clock import PhaseClock
from sacglam.config.section import PositiveFloat

if TYPE_CHECKING:
    import numpy as np

    from sacglam.algos.base import Algorithm
    from sacglam.models.actor_critic import ActorCritic


class AwacConfig(OffPolicyConfig):
    """Advantage-weighted regression (AWAC, Nair et al., 2020): SAC's settings except for the actor's."""

    entropy_settings: ClassVar[str] = "algo.temperature"
    soft_target: ClassVar[bool] = False
    learns_offline: ClassVar[bool] = True

    type: str = "awac"
    temperature: PositiveFloat = 0.05
    """Advantage at which an action's weight is e times that of an average one; large: behavioural cloning."""

    @override
    def build(
        self, model: "ActorCritic", total_updates: int, rng: "np.random.Generator", clock: PhaseClock
    ) -> "Algorithm":
        from sacglam.algos.awac import Awac

        return Awac(model, self, clock)
