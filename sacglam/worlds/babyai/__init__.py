"""BabyAI-Text: grid worlds of keys, balls, boxes and doors in words, on minigrid (extra `babyai`)."""

from sacglam.worlds.babyai.env import BabyAI

__all__ = ["BabyAI"]
