"""Finds code by name, whether it comes with sacglam or from its users."""

import importlib
import traceback
from pathlib import Path
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
            raise ConfigError(f"{what} {name!r} cannot be imported: {error!r}. {_advice(module)}") from error
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
        said = as_text([*traceback.format_list(own[-5:]), *traceback.format_exception_only(error)])
        raise ConfigError(f"{what} {name!r}: its module raised\n{said}") from error
    try:
        for attribute in path.split("."):
            found = getattr(found, attribute)
            if isinstance(found, ModuleType):
                raise ConfigError(f"{what} {name!r} reaches into {found.__name__}, another module; name that one")
    except AttributeError as error:
        raise ConfigError(f"{what} {name!r}: {error}. Check the spelling after the colon") from error
    return found


def _advice(module: str) -> str:
    """What to do if there is no such module."""
    name = module.removesuffix(".py").strip("./").replace("/", ".")
    if name != module:
        return f"Expected a module's name, such as {name}, not that of a file"
    here = Path(f"{name.replace('.', '/')}.py").exists()
    return "Its file is here: export PYTHONPATH=. lets Python find it" if here else "Is it on the Python path?"
