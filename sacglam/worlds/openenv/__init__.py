"""Environments on OpenEnv servers, and ours on such a server. Needs the extra `openenv`."""

from sacglam.worlds.openenv.env import RemoteEnv, Served, about
from sacglam.worlds.openenv.wire import application

__all__ = ["RemoteEnv", "Served", "about", "application"]
