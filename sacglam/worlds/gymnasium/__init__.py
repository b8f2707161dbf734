"""Gymnasium environments as text environments, and ours as gymnasium environments. Needs the extra `gymnasium`."""

from sacglam.worlds.gymnasium.describers import Describer
from sacglam.worlds.gymnasium.from_gymnasium import GymnasiumWorld
from sacglam.worlds.gymnasium.to_gymnasium import SacglamEnv
from sacglam.worlds.gymnasium.toy_text import described

__all__ = ["Describer", "GymnasiumWorld", "SacglamEnv", "described"]
