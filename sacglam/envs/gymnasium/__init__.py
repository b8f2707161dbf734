"""Gymnasium environments as text environments, and ours as gymnasium environments. Needs the extra `gymnasium`."""

from sacglam.envs.gymnasium.describers import Describer
from sacglam.envs.gymnasium.inward import GymnasiumWorld
from sacglam.envs.gymnasium.outward import SacglamEnv
from sacglam.envs.gymnasium.toy_text import described

__all__ = ["Describer", "GymnasiumWorld", "SacglamEnv", "described"]
