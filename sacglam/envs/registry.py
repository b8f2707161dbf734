"""Environments by name: those that were registered, and a user's own by `package.module:factory`."""

import importlib
import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, get_args

from sacglam.envs.base import Split, TextEnv
from sacglam.envs.calls import Call
from sacglam.envs.checks import CheckedEnv
from sacglam.errors import ConfigError
from sacglam.plugins import find

Factory = Callable[..., TextEnv]
_REGISTRY: dict[str, Factory | str] = {
    "playground": "sacglam.envs.playground:Playground",
    "playground_simple": "sacglam.envs.playground:simple",
    "little_zoo": "sacglam.envs.little_zoo:LittleZoo",
    "bitflip": "sacglam.envs.bitflip:BitFlip",
    "babyai": "sacglam.worlds.babyai:BabyAI",
    "textworld": "sacglam.worlds.textworld:TextWorld",
}
"""Factories, or where they are: those that come with sacglam are imported at first use."""
_GYMNASIUM, _OPENENV = "gymnasium:", "openenv:"
_WORLDS = "sacglam.worlds."


def register(name: str, factory: Factory) -> None:
    """Make `factory` available as `make(name, **options)`; its keyword arguments are the options."""
    if name in _REGISTRY and _find(name) is not factory:
        raise ConfigError(f"environment {name!r} is already registered; choose another name")
    _REGISTRY[name] = factory


def registered() -> list[str]:
    """The names of the registered environments."""
    return list(_REGISTRY)


def make(name: str, **options: Any) -> CheckedEnv:
    """Make the environment registered as `name`, by the factory at `package.module:attribute`, or one from elsewhere.

    `gymnasium:ID` is one of gymnasium's, `openenv:URL` one on an OpenEnv server. Everything it returns is checked.

    Raises:
        ConfigError: no such environment, or an option that its factory does not accept.
    """
    factory = _find(name)
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # a builtin type such as dict, which makes no environment
        raise ConfigError(f"environment {name!r} is not a factory; expected a class or function of options") from None
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for option in options:
        if option not in known and not takes_any:
            near = get_close_matches(option, known, n=1)
            hint = f" did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"environment {name!r} has no option {option!r};{hint} it accepts: {', '.join(known) or 'none'}"
            )
    with Call(lambda: f"environment {name!r}, its constructor with the options {options}"):
        try:
            return CheckedEnv(factory(**options), name)
        except TypeError as error:
            if name not in _REGISTRY:  # perhaps a slip in the author's own code
                raise
            raise ConfigError(f"environment {name!r} cannot be made with the options {options}: {error}") from error


def foreign_code(name: str, options: Mapping[str, Any]) -> list[str]:
    """The names of the foreign code that `make(name, **options)` would run: whatever does not come with sacglam.

    Registered environments and gymnasium's environments with an included describer run none. Any other gymnasium id
    may run what its keyword arguments name. A server's address counts as foreign code. Nothing is imported to find out.
    """
    if name in _REGISTRY or ":" not in name:
        return []
    if not name.startswith((_GYMNASIUM, _OPENENV)):
        return [name]
    described = name.startswith(_GYMNASIUM) and _shipped(f"{_WORLDS}gymnasium:described")(name.removeprefix(_GYMNASIUM))
    describer = options.get("describer")
    return [*([] if described else [name]), *([str(describer)] if describer else [])]


def _find(name: str) -> Factory:
    if name not in _REGISTRY and name.startswith((_GYMNASIUM, _OPENENV)):
        url = name.removeprefix(_OPENENV)
        if name.startswith(_OPENENV) and _shipped(f"{_WORLDS}openenv:about")(url):
            return partial(_shipped(f"{_WORLDS}openenv:Served"), url)
        return partial(_shipped(f"{_WORLDS}gymnasium:GymnasiumWorld"), name)
    if name not in _REGISTRY and ":" not in name:
        near = get_close_matches(name, _REGISTRY, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"unknown environment {name!r}; {hint}Known: {', '.join(sorted(_REGISTRY))}; "
            "or name your own as 'package.module:factory', one of gymnasium's as 'gymnasium:ID', or one on an OpenEnv "
            "server as 'openenv:URL'"
        )
    place = _REGISTRY.get(name)
    with Call(lambda: f"environment {name!r}, its import"):
        factory = _shipped(place) if isinstance(place, str) else place or find(name, "environment")
    if not callable(factory):
        raise ConfigError(f"environment {name!r} is not a factory; expected a class or function, got {factory!r}")
    return factory


def application(name: str, options: Mapping[str, Any]) -> Any:
    """The ASGI application of an OpenEnv server for the environment from `make(name, **options)`.

    Raises:
        ConfigError: it cannot be made, or OpenEnv is not installed.
    """
    return _shipped(f"{_WORLDS}openenv.server:application")(name, options)


def _shipped(place: str) -> Any:
    """The part of sacglam at `module:attribute`, whose dependencies may have to be installed first."""
    module, _, attribute = place.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        extra = module.removeprefix(_WORLDS).replace(".", "-")
        built = ", which builds jericho with gcc and make (docs/guides/textworld.md)" if extra == "textworld" else ""
        raise ConfigError(f"{extra} needs {error.name or error}: pip install 'sacglam[{extra}]'{built}") from error


@dataclass(frozen=True)
class Description:
    """An environment's numbers of training and held-out goals, by type."""

    name: str
    goals: dict[str, int]
    heldout: dict[str, int]
    missing: str = ""
    """What must be installed before its goals are known."""


def describe() -> list[Description]:
    """The numbers of goals of the registered environments, with their default options."""
    described = []
    for name in _REGISTRY:
        try:
            env = make(name)
            train, heldout = (dict(Counter(map(env.goal_type, env.goals(split)))) for split in get_args(Split))
            described.append(Description(name, train, heldout))
        except ConfigError as error:
            described.append(Description(name, {}, {}, str(error)))
    return described
