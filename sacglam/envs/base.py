"""The protocol of an environment, and the registry that makes one by name."""

import inspect
import pkgutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, Protocol

from sacglam.errors import ConfigError, EnvironmentContractError
from sacglam.types import Observation, Step

Split = Literal["train", "heldout"]


class TextEnv(Protocol):
    """A goal-conditioned text environment that plays one episode at a time.

    Contract: an episode is a function of `(goal, seed, actions)` and of nothing else, so that a checkpoint can store
    an open episode as its actions and replay it. Every state offers at least one action, and its actions have
    distinct texts.
    """

    def goals(self, split: Split) -> Sequence[str]:
        """The training or the held-out goals, in a fixed order; `heldout` may be empty."""

    def goal_type(self, goal: str) -> str:
        """The kind of `goal`, by which success is reported, e.g. `grasp`."""

    def reset(self, goal: str, seed: int) -> Observation:
        """Start the episode given by `goal` and `seed`."""

    def step(self, action: int) -> Step:
        """Take the action with this index. Reward and `achieved` must agree on the episode's goal."""

    def optimal_length(self) -> int | None:
        """Fewest steps from here to the episode's goal; None without a planner."""


Factory = Callable[..., TextEnv]
_REGISTRY: dict[str, Factory] = {}


def register(name: str, factory: Factory) -> None:
    """Make `factory` available as `make(name, **options)`; its keyword arguments are the options."""
    if name in _REGISTRY and _REGISTRY[name] is not factory:
        raise ConfigError(f"environment {name!r} is already registered; choose another name")
    _REGISTRY[name] = factory


def make(name: str, **options: Any) -> TextEnv:
    """Make the environment registered as `name`, or the factory at `package.module:attribute`.

    Raises:
        ConfigError: no such environment, or an option that its factory does not accept.
    """
    factory = _find(name)
    parameters = inspect.signature(factory).parameters.values()
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
        return factory(**options)
    except TypeError as error:
        raise ConfigError(f"environment {name!r} cannot be made with the options {options}: {error}") from error


def _find(name: str) -> Factory:
    if name in _REGISTRY:
        return _REGISTRY[name]
    if ":" in name:
        try:
            factory: Factory = pkgutil.resolve_name(name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"environment {name!r} cannot be imported: {error!r}. Is it on the Python path?"
            ) from error
        if not callable(factory):
            raise ConfigError(f"environment {name!r} is not a factory; expected a class or function, got {factory!r}")
        return factory
    near = get_close_matches(name, _REGISTRY, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(
        f"unknown environment {name!r}; {hint}Known: {', '.join(sorted(_REGISTRY))}; "
        "or name your own as 'package.module:factory'"
    )


def check_actions(observation: Observation) -> None:
    """Refuse a list of actions on which no policy can be defined.

    Raises:
        EnvironmentContractError: the list is empty, an action has no text, or two have the same.
    """
    actions = observation.actions
    if not all(action.strip() for action in actions):
        raise EnvironmentContractError(
            f"expected actions of at least one word, got {actions} in the state:\n{observation.text}"
        )
    if not actions:
        raise EnvironmentContractError(f"expected at least one action, got none, in the state:\n{observation.text}")
    if len(set(actions)) != len(actions):
        repeated = sorted({action for action in actions if actions.count(action) > 1})
        raise EnvironmentContractError(
            f"expected distinct actions, got {repeated} more than once, in the state:\n{observation.text}\n"
            "Give each action its own text, or list it once."
        )


@dataclass(frozen=True)
class Description:
    """An environment in figures: its training and held-out goals by type."""

    name: str
    goals: dict[str, int]
    heldout: dict[str, int]


def describe() -> list[Description]:
    """The registered environments with their default options, in figures."""
    return [
        Description(name, _counts(env, "train"), _counts(env, "heldout"))
        for name, env in ((name, factory()) for name, factory in _REGISTRY.items())
    ]


def _counts(env: TextEnv, split: Split) -> dict[str, int]:
    return dict(Counter(env.goal_type(goal) for goal in env.goals(split)))
