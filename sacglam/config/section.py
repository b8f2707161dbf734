"""The base class of configuration sections (frozen, no unknown keys), and of those that come in several kinds."""

import builtins
from collections.abc import Mapping
from inspect import isabstract
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, ValidationInfo

from sacglam.errors import ConfigError, UntrustedError
from sacglam.files import Form
from sacglam.plugins import find

# Upper bounds far above any use turn a typo into a message before it can exhaust memory.
Positive = Annotated[int, Field(gt=0, le=1_000_000_000)]
NonNegative = Annotated[int, Field(ge=0, le=1_000_000_000)]
Size = Annotated[int, Field(gt=0, le=16_384)]
# torch refuses numbers beyond float32's range; Adam's step can be ten times the learning rate.
_MOST_FLOAT = 1e30
PositiveFloat = Annotated[float, Field(gt=0, le=_MOST_FLOAT)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=_MOST_FLOAT)]
Fraction = Annotated[float, Field(ge=0, le=1)]
OpenFraction = Annotated[float, Field(gt=0, le=1)]
Text = Annotated[str, Field(max_length=10_000)]
TRUST = (
    "which would run code that does not come with sacglam; if the run is yours, or you trust whoever made it, pass "
    "--trust (in Python: trusted=True)"
)


class Section(Form, extra="forbid", use_attribute_docstrings=True):
    """A frozen part of the configuration that refuses unknown keys."""

    def with_values(self, **values: Any) -> Self:
        """A copy with those of `values` whose keys it has, such as `warmup_updates=0`."""
        return self.model_copy(update={key: v for key, v in values.items() if key in type(self).model_fields})


class Named(Section):
    """A section that comes in several kinds, each a subclass with its own settings.

    `type` selects one: the name of a kind that comes with sacglam, or `module:Class` for your own.
    """

    key: ClassVar[str]
    """Its place in the configuration."""
    shipped: ClassVar[Mapping[str, str]]
    """The kinds that come with sacglam: `module:Class` by name; the first is the default."""

    type: str

    @classmethod
    def kind(cls, name: Any, trusted: bool = True) -> "builtins.type[Self]":
        """The class behind a `type`. Only a `trusted` configuration may name code that does not come with sacglam.

        Raises:
            ConfigError: there is no such class, or it is not a kind of this section.
            UntrustedError: it names foreign code, and the configuration is not trusted.
        """
        if not isinstance(name, str) or (name not in cls.shipped and ":" not in name):
            kinds = ", ".join(cls.shipped)
            raise ConfigError(f"{cls.key}.type: expected one of {kinds}, or module:Class (got {name!r})")
        if name not in cls.shipped and not trusted:
            raise UntrustedError(f"it names {name!r}, {TRUST}")
        found = find(cls.shipped.get(name, name), f"{cls.key}.type")
        if not (isinstance(found, type) and issubclass(found, cls)):
            raise ConfigError(f"{cls.key}.type {name!r}: expected a subclass of {cls.__name__}, got {found!r}")
        if isabstract(found):
            raise ConfigError(f"{cls.key}.type {name!r} lacks a method: {', '.join(sorted(found.__abstractmethods__))}")
        return found

    @classmethod
    def read(cls, values: Any, info: ValidationInfo | None) -> Any:
        """An instance of the kind that `values` name; a name alone stands for its defaults."""
        if isinstance(values, str):
            values = {"type": values}
        if not isinstance(values, dict):
            return values
        values = {"type": next(iter(cls.shipped)), **values}
        context = info.context if info else None
        kind = cls.kind(values["type"], trusted=not (context and context.get("untrusted")))
        return kind.model_validate(values, context=context)
