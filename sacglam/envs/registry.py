"""Environments by name: those that were registered, and a user's own by `package.module:factory`."""

import importlib.util
import inspect
import pkgutil
import sysconfig
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from sacglam.envs.base import Split, TextEnv
from sacglam.envs.checks import CheckedEnv
from sacglam.errors import ConfigError

Factory = Callable[..., TextEnv]
_REGISTRY: dict[str, Factory] = {}
_GYMNASIUM = "gymnasium:"


def register(name: str, factory: Factory) -> None:
    """Make `factory` available as `make(name, **options)`; its keyword arguments are the options."""
    if name in _REGISTRY and _REGISTRY[name] is not factory:
        raise ConfigError(f"environment {name!r} is already registered; choose another name")
    _REGISTRY[name] = factory


def registered() -> list[str]:
    """The names of the registered environments."""
    return list(_REGISTRY)


def make(name: str, **options: Any) -> CheckedEnv:
    """Make the environment registered as `name`, by the factory at `package.module:attribute`, or `gymnasium:ID`.

    Its every answer is checked.

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
    try:
        return CheckedEnv(factory(**options), name)
    except TypeError as error:
        raise ConfigError(f"environment {name!r} cannot be made with the options {options}: {error}") from error


def check_trusted(name: str, options: Mapping[str, Any]) -> None:
    """Refuse code that a run's folder names, unless it is registered, installed as gymnasium's, or yours.

    What is yours is below the working directory. Nothing is imported to find out. Configurations are code: whoever
    writes `os:system` into one has it run.

    Raises:
        ConfigError: it is none of these.
    """
    code = name.removeprefix(_GYMNASIUM)
    if name not in _REGISTRY and (code == name or ":" in code):  # else one of the ids that gymnasium knows
        _check_yours(code)
    if code != name and "describer" in options:
        _check_yours(str(options["describer"]))


def _check_yours(name: str) -> None:
    package = name.partition(":")[0].partition(".")[0]
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    found = [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.has_location else [])] if spec else []
    places = [Path(place).resolve() for place in found if place]
    # A virtual environment is often below the working directory, and what is installed in it is not yours.
    installed = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    yours = [place for place in places if not any(place.is_relative_to(folder) for folder in installed)]
    if not any(place.is_relative_to(Path.cwd()) for place in yours):
        raise ConfigError(
            f"this run's config.yaml names {name!r}, which would be imported and called, and is neither registered nor "
            "below the working directory; go to the folder that holds it, or pass --trust if you know who made the run"
        )


def _find(name: str) -> Factory:
    if name in _REGISTRY:
        return _REGISTRY[name]
    if name.startswith(_GYMNASIUM):
        return _gymnasium(name)
    if ":" in name:
        factory: Factory = resolve(name, "environment")
        if not callable(factory):
            raise ConfigError(f"environment {name!r} is not a factory; expected a class or function, got {factory!r}")
        return factory
    near = get_close_matches(name, _REGISTRY, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(
        f"unknown environment {name!r}; {hint}Known: {', '.join(sorted(_REGISTRY))}; "
        "or name your own as 'package.module:factory', or one of gymnasium's as 'gymnasium:ID'"
    )


def resolve(name: str, kind: str) -> Any:
    """What is at `package.module:attribute`; `kind` says what it should be.

    Raises:
        ConfigError: it cannot be imported.
    """
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{kind} {name!r} cannot be imported: {error!r}. Is it on the Python path?") from error


def _gymnasium(name: str) -> Factory:
    try:
        from sacglam.envs.gymnasium import GymnasiumWorld
    except ModuleNotFoundError as error:
        raise ConfigError(f"{name!r} needs {error.name}: pip install -e '.[gymnasium]'") from error
    return partial(GymnasiumWorld, name.removeprefix(_GYMNASIUM))


@dataclass(frozen=True)
class Description:
    """An environment in figures: its training and held-out goals by type."""

    name: str
    goals: dict[str, int]
    heldout: dict[str, int]
    missing: str = ""
    """What is to be installed before its goals are known."""


def describe() -> list[Description]:
    """The registered environments with their default options, in figures."""
    return [_described(name, factory()) for name, factory in _REGISTRY.items()]


def _described(name: str, env: TextEnv) -> Description:
    try:
        return Description(name, _counts(env, "train"), _counts(env, "heldout"))
    except ConfigError as error:
        return Description(name, {}, {}, str(error))


def _counts(env: TextEnv, split: Split) -> dict[str, int]:
    return dict(Counter(env.goal_type(goal) for goal in env.goals(split)))
