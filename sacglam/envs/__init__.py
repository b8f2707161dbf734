"""Text environments: their protocol, the registry that makes them by name, and the included ones."""

import sys
from functools import partial

from sacglam.envs.babyai import BabyAI
from sacglam.envs.base import Split, TextEnv
from sacglam.envs.bitflip import BitFlip
from sacglam.envs.checks import CheckedEnv, check_actions
from sacglam.envs.playground import Playground
from sacglam.envs.registry import describe, foreign_code, make, register
from sacglam.envs.textworld import TextWorld
from sacglam.envs.trial import check_env

__all__ = [
    "CheckedEnv",
    "Split",
    "TextEnv",
    "check_actions",
    "check_env",
    "describe",
    "foreign_code",
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
