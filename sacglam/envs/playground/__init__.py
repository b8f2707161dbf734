"""Playground-Text: a text environment of animals, plants, furniture and supplies, with a social partner."""

from functools import partial

from sacglam.envs.playground.env import Playground

__all__ = ["Playground", "simple"]

simple = partial(Playground, size="simple")
