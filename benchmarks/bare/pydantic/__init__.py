"""Stands in for pydantic where it is missing, so that the benchmarks need torch, transformers and peft alone.

It holds values and their defaults, and validates nothing. `launch/gpu_check.sh` puts it on the path where the real one
is missing, and writes that into its result. Nothing else uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pydantic import dataclasses as dataclasses

T = TypeVar("T")

JsonValue = NonNegativeFloat = NonNegativeInt = PositiveFloat = PositiveInt = ValidationInfo = Any


class SerializeAsAny:
    """The type alone."""

    def __class_getitem__(cls, item: Any) -> Any:
        return item


class TypeAdapter(Generic[T]):
    """Passes values as they are."""

    def __init__(self, kind: Any, **options: Any) -> None:
        self.kind = kind

    def validate_python(self, value: Any, **options: Any) -> Any:
        """The value."""
        return value


class _Factory:
    """A default that is made when it is needed."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


class ValidationError(ValueError):
    """Never raised here."""


class BaseModel:
    """Values by name, with the class attributes as defaults."""

    def __init_subclass__(cls, **settings: Any) -> None:
        """As for `ConfigDict`."""

    def __init__(self, **values: Any) -> None:
        known = {name for cls in type(self).__mro__ for name in getattr(cls, "__annotations__", {})}
        unknown = [name for name in values if name not in known]
        if unknown:
            raise TypeError(f"{type(self).__name__} has no {', '.join(unknown)}")
        made = {name: vars(cls)[name] for cls in type(self).__mro__[::-1] for name in vars(cls)}
        self.__dict__ |= {name: each.make() for name, each in made.items() if isinstance(each, _Factory)} | values

    @classmethod
    def model_validate(cls, values: dict[str, Any], **options: Any) -> Any:
        """An object with these values."""
        return cls(**values)


def ConfigDict(**settings: Any) -> dict[str, Any]:
    """The settings, which have no effect."""
    return settings


def Field(default: Any = None, **constraints: Any) -> Any:
    """The default alone."""
    return _Factory(constraints["default_factory"]) if "default_factory" in constraints else default


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
