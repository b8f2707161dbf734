"""Playground-Text: a text environment of animals, plants, furniture and supplies, with a social partner."""

from sacglam.envs.playground.env import Playground

__all__ = ["Playground"]
