"""What puts a gymnasium environment into words: by options and guesses, or by methods of its own."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from sacglam.errors import ConfigError

_PLACES = {
    "text": ("obs", "obs.text", "obs.observation", "obs.description", "info.text", "info.description"),
    "goal": ("obs.mission", "obs.desired_goal", "obs.goal", "info.mission", "info.goal"),
    "actions": ("info.admissible_commands", "info.valid", "info.possible_actions", "environment.language_action_space"),
    "achieved": ("info.achieved_goals",),
    "success": ("info.is_success", "info.success", "info.won"),
}
"""Where each is looked for, in this order, if neither an option nor a method gives it."""
_PLACE = re.compile(r"(obs|info|environment)(\.[a-zA-Z]\w*)*")  # what begins with an underscore is private
_RULES = ("reward", "terminated")  # of success
_GOAL_ENV, _TASK = "compute_reward", "Solve the task"
_MOST_NUMBERS = 32


class Describer:
    """Puts a gymnasium environment into words, from the places that its options name or that were guessed.

    Subclass it for your own environment, and override what is found elsewhere. `obs` and `info` are what `reset` and
    `step` return; `self.env` is the environment without its wrappers.
    """

    names: Sequence[str] = ()
    """The actions of a `Discrete` action space in words."""

    def __init__(self, env: Any, options: Mapping[str, Any], obs: Any, info: Any) -> None:
        """`obs` and `info` are those of a reset, in which the places are looked for.

        Raises:
            ConfigError: an option that does not fit, or nothing to take the text or the actions from.
        """
        self.env = getattr(env, "unwrapped", env)
        self.tasks: Mapping[str, Any] = {}  # each goal that a reset gave, and the observation of that reset
        self.origin: dict[str, str] = {}  # where each is from, for the user
        self._places: dict[str, str] = {}
        self._options = options
        for facet in _PLACES:
            self._locate(facet, obs, info)
        self.text(obs, info), self.goal(obs, info), self.actions(obs, info), self.achieved(obs, info)

    def text(self, obs: Any, info: Mapping[str, Any]) -> str:
        """The observation; not the goal."""
        found = self._at("text", obs, info)
        return found if isinstance(found, str) else f"State: {_in_words(found)}"

    def goal(self, obs: Any, info: Mapping[str, Any]) -> str:
        """The task that the environment set at the reset with this observation."""
        if "goal" in self._places:
            return _in_words(self._at("goal", obs, info))
        return str(self._options.get("goal", _TASK))

    def goals(self) -> Sequence[str]:
        """Goals to practise next to the environment's own."""
        return ()

    def actions(self, obs: Any, info: Mapping[str, Any]) -> Mapping[str, Any]:
        """The texts of the actions in this state, and what `step` takes for each."""
        space = getattr(self.env, "action_space", None)
        if "actions" in self._places or not isinstance(space, spaces.Discrete):
            texts = dict.fromkeys(self._at("actions", obs, info))
            return {text: i if isinstance(space, spaces.Discrete) else text for i, text in enumerate(texts)}
        names = self._options.get("actions", self.names) or [f"Action {i}" for i in range(space.n)]
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
        found = [value for place in places if (value := _look(place, self.env, obs, info)) is not None]
        if not found and terminated and "success" in self._places:  # before the end some are silent
            self._at("success", obs, info)
        return bool(found[0]) if found else terminated and (reward > 0 or rule == "terminated")

    def _by_reward(self, obs: Any, info: Any) -> list[str]:
        """The goals of a GoalEnv whose reward for what was achieved is that for achieving just them."""

        def reward(desired: Any, achieved: Any) -> float:
            return float(self.env.compute_reward(achieved, desired, info))

        achieved = obs["achieved_goal"]
        wanted = {goal: first["desired_goal"] for goal, first in self.tasks.items()}
        met = [goal for goal, desired in wanted.items() if reward(desired, achieved) >= reward(desired, desired)]
        return [self.goal({**obs, "desired_goal": achieved}, info), *met]

    def _locate(self, facet: str, obs: Any, info: Any) -> None:
        """Note where a facet is from."""
        option = self._options.get(facet)
        if getattr(type(self), facet) is not getattr(Describer, facet):
            if option is not None:
                raise ConfigError(f"the option {facet} has no effect: {type(self).__name__} gives it; leave one out")
            self.origin[facet] = type(self).__name__
        elif isinstance(option, str) and _PLACE.fullmatch(option):
            self._places[facet] = self.origin[facet] = option
        elif option is not None:
            if facet == "success" and option not in _RULES:
                raise ConfigError(f"option success: expected {' or '.join(_RULES)}, or info.KEY; got {option!r}")
            self.origin[facet] = "its option"
        elif facet != "success":
            self._guess(facet, obs, info)

    def _guess(self, facet: str, obs: Any, info: Any) -> None:
        for place in _PLACES[facet]:
            found = _look(place, self.env, obs, info)
            if found is not None and (facet != "text" or isinstance(found, str) or _numbers(found, "iub")):
                self._places[facet], self.origin[facet] = place, f"{place} (guessed)"
                if facet == "actions" and isinstance(getattr(self.env, "action_space", None), spaces.Discrete):
                    self.origin[facet] = f"{place}, passed by index (guessed)"
                return
        if facet == "achieved" and hasattr(self.env, _GOAL_ENV) and self.origin["goal"].startswith("obs.desired_goal"):
            self.origin[facet] = _GOAL_ENV
        elif facet == "goal":
            self.origin[facet] = f"nowhere, so {_TASK!r}"
        elif facet == "actions":
            self.origin[facet] = type(self).__name__ if self.names else "nowhere, so numbered"

    def _at(self, facet: str, obs: Any, info: Any) -> Any:
        place = self._places.get(facet)
        found = None if place is None else _look(place, self.env, obs, info)
        if found is None:
            raise ConfigError(
                f"no {facet} at {place or self._options.get(facet) or ', '.join(_PLACES[facet])}: obs is {_kind(obs)}, "
                f"info {_kind(info)}. Set the option {facet} to its place, or write a describer: see "
                "docs/guides/gymnasium.md"
            )
        return found


def _look(place: str, env: Any, obs: Any, info: Any) -> Any:
    """What is at a place such as `info.admissible_commands`; None if nothing is."""
    root, *keys = place.split(".")
    found: Any = {"obs": obs, "info": info, "environment": env}[root]
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else getattr(found, key, None)
    return found


def _numbers(value: Any, kinds: str = "iubf") -> list[float]:
    """A number, or a few of them; none if it is anything else."""
    try:
        found = np.asarray(value)
    except ValueError:  # of several shapes
        return []
    return list(found.ravel()) if found.dtype.kind in kinds and found.size <= _MOST_NUMBERS else []


def _in_words(value: Any) -> str:
    if not isinstance(value, str) and not _numbers(value):
        raise ConfigError(f"expected a text or at most {_MOST_NUMBERS} numbers, got {_kind(value)}")
    return value if isinstance(value, str) else " ".join(f"{number:.4g}" for number in _numbers(value))


def _kind(value: Any) -> str:
    """What an observation is, in a few words."""
    if isinstance(value, Mapping):
        return f"a mapping of {', '.join(map(str, value)) or 'nothing'}"
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
