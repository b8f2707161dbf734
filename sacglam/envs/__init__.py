"""Text worlds: the protocol they follow, the registry that makes them by name, and two that are shipped."""

from sacglam.envs.base import Split, TextEnv, check_actions, make, register, registered
from sacglam.envs.bitflip import BitFlip
from sacglam.envs.playground import Playground

__all__ = ["Split", "TextEnv", "check_actions", "make", "register", "registered"]

register("playground", Playground)
register("bitflip", BitFlip)
