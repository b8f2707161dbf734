"""Text environments: their protocol, the registry that makes them by name, and the included ones."""

from functools import partial

from sacglam.envs.base import Description, Split, TextEnv, check_actions, describe, make, register
from sacglam.envs.bitflip import BitFlip
from sacglam.envs.playground import Playground

__all__ = ["Description", "Split", "TextEnv", "check_actions", "describe", "make", "register"]

register("playground", Playground)
register("playground_simple", partial(Playground, size="simple"))
register("bitflip", BitFlip)
