"""Little-Zoo: growing a chain of plants, herbivores and carnivores, among many goals that cannot be achieved."""

from sacglam.envs.little_zoo.env import LittleZoo

__all__ = ["LittleZoo"]
