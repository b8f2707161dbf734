"""Finds code by name, whether it comes with sacglam or from its users."""

import importlib
import traceback
from types import ModuleType
from typing import Any

from sacglam.errors import ConfigError, SacglamError, as_text


def find(name: str, what: str) -> Any:
    """The attribute at `package.module:attribute`; `what` names its purpose in errors.

    Raises:
        ConfigError: there is no such module or attribute, the module raises something (its traceback is shown), or the
            attribute belongs to another module.
    """
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except (SacglamError, KeyboardInterrupt):
        raise
    except BaseException as error:  # whatever the module's own code raises, including SystemExit
        absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        if absent or not module or module.startswith("."):
            raise ConfigError(f"{what} {name!r} cannot be imported: {error!r}. Is it on the Python path?") from error
        said = as_text(traceback.format_exception(error, limit=-5))
        raise ConfigError(f"{what} {name!r}: its module raised\n{said}") from error
    try:
        for attribute in path.split("."):
            found = getattr(found, attribute)
            if isinstance(found, ModuleType):
                raise ConfigError(f"{what} {name!r} reaches into {found.__name__}, another module; name that one")
    except AttributeError as error:
        raise ConfigError(f"{what} {name!r}: {error}. Check the spelling after the colon") from error
    return found
