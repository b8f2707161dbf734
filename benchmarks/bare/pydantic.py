"""Stands in for pydantic where it is missing, so that the benchmarks need torch, transformers and peft alone.

It holds values and their defaults, and validates nothing. `launch/gpu_check.sh` puts it on the path where the real one
is missing, and writes that into its result. Nothing else uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

JsonValue = Any


class ValidationError(ValueError):
    """Never raised here."""


class BaseModel:
    """Values by name, with the class attributes as defaults."""

    def __init__(self, **values: Any) -> None:
        known = {name for cls in type(self).__mro__ for name in getattr(cls, "__annotations__", {})}
        unknown = [name for name in values if name not in known]
        if unknown:
            raise TypeError(f"{type(self).__name__} has no {', '.join(unknown)}")
        self.__dict__.update(values)


def ConfigDict(**settings: Any) -> dict[str, Any]:
    """The settings, which have no effect."""
    return settings


def Field(default: Any = None, **constraints: Any) -> Any:
    """The default alone."""
    return default


def Tag(name: str) -> str:
    """The name alone."""
    return name


def BeforeValidator(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function alone."""
    return check


def Discriminator(choose: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function alone."""
    return choose


def _unchecked(**options: Any) -> Callable[[Any], Any]:
    return lambda function: function


model_validator = _unchecked
field_validator = lambda *names, **options: _unchecked()  # noqa: E731
