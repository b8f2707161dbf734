"""The settings of AWAC: SAC's critic and a different actor. Reading a configuration imports no torch."""

from typing import ClassVar

from sacglam.algos.sac_settings import OffPolicyConfig
from sacglam.config.section import PositiveFloat


class AwacConfig(OffPolicyConfig):
    """Advantage-weighted regression (AWAC, Nair et al., 2020): SAC's settings except for the actor's."""

    rule: ClassVar[str] = "sacglam.algos.awac:Awac"
    entropy_settings: ClassVar[str] = "algo.temperature"
    learns_offline: ClassVar[bool] = True

    type: str = "awac"
    temperature: PositiveFloat = 0.05
    """Advantage at which an action's weight is e times that of an average one; large values: behavioural cloning."""
