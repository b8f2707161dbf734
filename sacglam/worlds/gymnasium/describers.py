"""Describers turn a gymnasium environment into text, by options and guesses or by methods that override these."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from sacglam.errors import ConfigError

_PLACES = {
    "text": ("obs", "obs.text", "obs.observation", "obs.description", "info.text", "info.description"),
    "goal": ("obs.mission", "obs.desired_goal", "obs.goal", "info.mission", "info.goal"),
    "actions": (
        "info.admissible_commands",
        "info.valid",
        "info.possible_actions",
        "obs.legal_actions",
        "obs.legal_moves",
        "environment.language_action_space",
    ),
    "achieved": ("info.achieved_goals",),
    "success": ("info.is_success", "info.success", "info.won"),
}
"""Where each facet is looked for, in this order, if neither an option nor a method provides it."""
_PLACE = re.compile(r"(obs|info|environment)(\.[a-zA-Z]\w*)*")  # names that begin with an underscore are private
_RULES = ("reward", "terminated", "never")  # of success
_GOAL_ENV, _TASK = "compute_reward", "Solve the task"
_MAX_NUMBERS = 64  # the squares of a chessboard


class Describer:
    """Describes a gymnasium environment as text, from places that its options name or that are guessed.

    Subclass it for your own environment, and override what cannot be read from a place. `obs` and `info` are what
    `reset` and `step` return; `self.env` is the environment without its wrappers.
    """

    names: Sequence[str] = ()
    """The texts of the actions of a `Discrete` action space."""

    def __init__(self, env: Any, options: Mapping[str, Any], obs: Any, info: Any) -> None:
        """`obs` and `info` are those of a reset; places are looked for in them.

        Raises:
            ConfigError: an option does not fit, or there is no source of the text or the actions.
        """
        self.env = getattr(env, "unwrapped", env)
        self.tasks: Mapping[str, Any] = {}  # each goal that a reset set, and the observation of that reset
        self.origin: dict[str, str] = {}  # where each facet comes from, for the user
        self._places: dict[str, str] = {}
        self._options = options
        self._discrete = isinstance(getattr(self.env, "action_space", None), spaces.Discrete)
        for facet in _PLACES:
            place, origin = self._locate(facet, obs, info)
            if place:
                self._places[facet] = place
            if origin:
                self.origin[facet] = origin
        self.text(obs, info), self.goal(obs, info), self.actions(obs, info), self.achieved(obs, info)

    def text(self, obs: Any, info: Mapping[str, Any]) -> str:
        """The observation; not the goal."""
        value = self._at("text", obs, info)
        return value if isinstance(value, str) else f"State: {_as_text(value)}"

    def goal(self, obs: Any, info: Mapping[str, Any]) -> str:
        """The task that the environment set at the reset with this observation."""
        if "goal" in self._places:
            return _as_text(self._at("goal", obs, info))
        return str(self._options.get("goal", _TASK))

    @property
    def one_task(self) -> bool:
        """Whether every reset sets the same task: that of the option, or the default."""
        return "goal" not in self._places and type(self).goal is Describer.goal

    def goals(self) -> Sequence[str]:
        """Goals to train on besides the environment's own."""
        return ()

    def actions(self, obs: Any, info: Mapping[str, Any]) -> Mapping[str, Any]:
        """The texts of the actions in this state, and what to pass to `step` for each."""
        named = self._options.get("actions")
        if "actions" in self._places or not self._discrete:
            found = named if isinstance(named, list) else self._at("actions", obs, info)
            texts: dict[str, Any] = {}
            for i, each in enumerate(found):  # of several actions with the same text, the first counts
                named_one = isinstance(each, str)
                texts.setdefault(each if named_one else f"Action {each}", i if named_one and self._discrete else each)
            return texts
        space = self.env.action_space
        names = named or self.names or [f"Action {i}" for i in range(space.n)]
        if isinstance(names, str) or len(names) != space.n:
            raise ConfigError(f"expected a list of {space.n} names of actions, got {names!r}")
        mask = info.get("action_mask", [1] * len(names))
        return {name: int(space.start) + i for i, name in enumerate(names) if mask[i]}

    def achieved(self, obs: Any, info: Mapping[str, Any]) -> Iterable[str] | None:
        """The goals that hold in this state, new or not; None if only `success` is known."""
        if self.origin.get("achieved") == _GOAL_ENV:
            return self._by_reward(obs, info)
        return list(self._at("achieved", obs, info)) if "achieved" in self.origin else None

    def success(self, obs: Any, info: Mapping[str, Any], reward: float, terminated: bool) -> bool:
        """Whether the step with these results accomplished the environment's task."""
        rule = self._options.get("success")
        places = _PLACES["success"] if rule is None else [rule] if "success" in self._places else []
        values = [value for place in places if (value := _look(place, self.env, obs, info)) is not None]
        if not values and terminated and "success" in self._places:  # some report it only at the end
            self._at("success", obs, info)
        return bool(values[0]) if values else terminated and rule != "never" and (reward > 0 or rule == "terminated")

    def _by_reward(self, obs: Any, info: Any) -> list[str]:
        """The goals of a GoalEnv that were met: what was achieved earns at least as much as the goal itself would."""

        def reward(desired: Any, achieved: Any) -> float:
            return float(self.env.compute_reward(achieved, desired, info))

        achieved = obs["achieved_goal"]
        desired_by_goal = {goal: first["desired_goal"] for goal, first in self.tasks.items()}
        met = [goal for goal, each in desired_by_goal.items() if reward(each, achieved) >= reward(each, each)]
        return [self.goal({**obs, "desired_goal": achieved}, info), *met]

    def _locate(self, facet: str, obs: Any, info: Any) -> tuple[str, str]:
        """Where to read a facet, and where it comes from, for the user; either may be empty."""
        option = self._options.get(facet)
        if getattr(type(self), facet) is not getattr(Describer, facet):
            if option is not None:
                raise ConfigError(f"the option {facet} has no effect: {type(self).__name__} overrides it; drop one")
            return "", type(self).__name__
        if isinstance(option, str) and _PLACE.fullmatch(option):
            return option, option
        if option is not None:
            if facet == "success" and option not in _RULES:
                raise ConfigError(f"option success: expected {', '.join(_RULES)} or info.KEY; got {option!r}")
            return "", "its option"
        for place in _PLACES[facet] if facet != "success" else ():
            value = _look(place, self.env, obs, info)
            if value is not None and (facet != "text" or isinstance(value, str) or _numbers(value, "iub")):
                by_index = ", passed by index" if facet == "actions" and self._discrete else ""
                return place, f"{place}{by_index} (guessed)"
        if facet == "achieved" and hasattr(self.env, _GOAL_ENV) and self.origin["goal"].startswith("obs.desired_goal"):
            return "", _GOAL_ENV
        numbered = type(self).__name__ if self.names else "their numbers"
        return "", {"goal": f"the default, {_TASK!r}", "actions": numbered}.get(facet, "")

    def _at(self, facet: str, obs: Any, info: Any) -> Any:
        place = self._places.get(facet)
        value = None if place is None else _look(place, self.env, obs, info)
        if value is None:
            raise ConfigError(
                f"no {facet} at {place or self._options.get(facet) or ', '.join(_PLACES[facet])}: obs is {_kind(obs)}, "
                f"info {_kind(info)}. Set the option {facet} to its place, or write a describer: see "
                "docs/guides/gymnasium.md"
            )
        return value


def _look(place: str, env: Any, obs: Any, info: Any) -> Any:
    """What is at a place such as `info.admissible_commands`; None if nothing is."""
    root, *keys = place.split(".")
    value: Any = {"obs": obs, "info": info, "environment": env}[root]
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
    return value


def _numbers(value: Any, kinds: str = "iubf") -> list[float]:
    """A number, or a few of them, as a list; empty if it is anything else."""
    try:
        array = np.asarray(value)
    except ValueError:  # parts of different shapes
        return []
    return list(array.ravel()) if array.dtype.kind in kinds and array.size <= _MAX_NUMBERS else []


def _as_text(value: Any) -> str:
    if not isinstance(value, str) and not _numbers(value):
        raise ConfigError(
            f"expected a text or at most {_MAX_NUMBERS} numbers, got {_kind(value)}; write a describer: see "
            "docs/guides/gymnasium.md"
        )
    if isinstance(value, str):
        return value
    return " ".join(f"{n:.4g}" if isinstance(n, np.floating) else str(int(n)) for n in _numbers(value))


def _kind(value: Any) -> str:
    """What an observation is, in a few words."""
    if isinstance(value, Mapping):
        return f"a mapping of {', '.join(map(str, value)) or 'nothing'}"
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
