"""TextWorld: generated text games of rooms, containers and objects (extra `textworld`)."""

from sacglam.worlds.textworld.env import TextWorld

__all__ = ["TextWorld"]
