"""Text environments: their protocol, the registry that makes them by name, and the included ones."""

from sacglam.envs.base import Split, TextEnv
from sacglam.envs.checks import CheckedEnv, check_actions
from sacglam.envs.registry import describe, foreign_code, make, register
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
