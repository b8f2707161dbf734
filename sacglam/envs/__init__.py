"""Text environments: their protocol, the registry that makes them by name, and the included ones."""

import sys
from functools import partial

from sacglam.envs.babyai import BabyAI
from sacglam.envs.base import Split, TextEnv
from sacglam.envs.bitflip import BitFlip
from sacglam.envs.checks import CheckedEnv, check_actions, check_env
from sacglam.envs.playground import Playground
from sacglam.envs.registry import check_trusted, describe, make, register
from sacglam.envs.textworld import TextWorld

__all__ = [
    "CheckedEnv",
    "Split",
    "TextEnv",
    "check_actions",
    "check_env",
    "check_trusted",
    "describe",
    "make",
    "register",
]

register("playground", Playground)
register("playground_simple", partial(Playground, size="simple"))
register("bitflip", BitFlip)
register("babyai", BabyAI)
register("textworld", TextWorld)

if "gymnasium" in sys.modules:  # its make("sacglam.envs:Playground-v0") imports this module to have the ids registered
    import sacglam.envs.gymnasium  # noqa: F401
