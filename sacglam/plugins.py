"""Finds code by name, whether it comes with sacglam or from its users."""

import importlib
from types import ModuleType
from typing import Any

from sacglam.errors import ConfigError


def find(name: str, what: str) -> Any:
    """The attribute at `package.module:attribute`; `what` names its purpose in errors.

    Raises:
        ConfigError: it cannot be imported, or belongs to a module other than the one named.
        BaseException: whatever the module itself raises.
    """
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for attribute in path.split("."):
            found = getattr(found, attribute)
            if isinstance(found, ModuleType):
                raise ConfigError(f"{what} {name!r} reaches into {found.__name__}, another module; name that one")
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        absent = isinstance(error, AttributeError)
        advice = "Check the spelling after the colon" if absent else "Is it on the Python path?"
        raise ConfigError(f"{what} {name!r} cannot be imported: {error!r}. {advice}") from error
    return found
