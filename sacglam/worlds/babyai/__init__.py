"""BabyAI-Text: minigrid's keys, balls, boxes and doors described in text (extra `babyai`)."""

from sacglam.worlds.babyai.env import BabyAI

__all__ = ["BabyAI"]
