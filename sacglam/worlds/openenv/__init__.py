"""Environments on OpenEnv servers; `server` puts ours on one."""

from sacglam.worlds.openenv.client import RemoteEnv, Served, about

__all__ = ["RemoteEnv", "Served", "about"]
