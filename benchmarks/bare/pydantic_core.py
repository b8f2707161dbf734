"""Stands in for pydantic's core where that is missing; see `pydantic`, next to it."""

from json import loads as from_json

__all__ = ["from_json"]
