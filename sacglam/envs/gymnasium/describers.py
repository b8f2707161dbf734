"""What puts a gymnasium environment into words: by options and guesses, or by methods of its own."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from sacglam.errors import ConfigError, EnvironmentContractError

_PLACES = {
    "text": ("obs", "obs.text", "obs.observation", "obs.description", "info.text", "info.description"),
    "goal": ("obs.mission", "obs.desired_goal", "obs.goal", "info.mission", "info.goal"),
    "actions": ("info.admissible_commands", "info.valid", "info.possible_actions", "env.language_action_space"),
    "achieved": ("info.achieved_goals",),
    "success": ("info.is_success", "info.success", "info.won"),
}
"""Where each is looked for, in this order, if neither an option nor a method gives it."""
_PLACE = re.compile(r"(obs|info|env)(\.[a-zA-Z]\w*)*")  # what begins with an underscore is private
_MOST_NUMBERS = 32
_GOAL_ENV, _TASK = "compute_reward", "Solve the task"


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
            ConfigError: an option names a place that is not there, or something is nowhere to be found.
        """
        self.env = getattr(env, "unwrapped", env)
        self.tasks: Mapping[str, Any] = {}  # each goal that a reset gave, and the observation of that reset
        self.origin: dict[str, str] = {}  # where each is from, in words
        self._own = f"the describer {type(self).__name__}"
        self._places: dict[str, str] = {}
        self._options = options
        for facet in _PLACES:
            self._settle(facet, options.get(facet), obs, info)
        if "actions" not in self.origin:
            self._name_actions(options.get("actions"))
        if "text" not in self.origin:
            raise ConfigError(
                f"expected observations of text or whole numbers, got {_kind(obs)}: set the option text to the place "
                "of a text, such as info.description, or write a describer (docs/gymnasium.md)"
            )

    def text(self, obs: Any, info: Mapping[str, Any]) -> str:
        """The observation; not the goal."""
        found = self._at(self._places["text"], obs, info)
        return found if isinstance(found, str) else f"State: {in_words(found)}"

    def goal(self, obs: Any, info: Mapping[str, Any]) -> str:
        """The task that the environment set at the reset with this observation."""
        if "goal" in self._places:
            return in_words(self._at(self._places["goal"], obs, info))
        return str(self._options.get("goal", _TASK))

    def goals(self) -> Sequence[str]:
        """Goals to practise next to the environment's own."""
        return ()

    def actions(self, obs: Any, info: Mapping[str, Any]) -> Mapping[str, Any]:
        """The texts of the actions in this state, and what `step` takes for each."""
        space = getattr(self.env, "action_space", None)
        discrete = isinstance(space, spaces.Discrete)
        if "actions" in self._places:
            texts = dict.fromkeys(self._at(self._places["actions"], obs, info))
            return {text: i if discrete else text for i, text in enumerate(texts)}
        mask = info.get("action_mask", [1] * len(self.names))
        return {name: int(self.env.action_space.start) + i for i, name in enumerate(self.names) if mask[i]}

    def achieved(self, obs: Any, info: Mapping[str, Any]) -> Iterable[str] | None:
        """The goals that hold in this state, new or not; None if only `success` is known."""
        if "achieved" in self._places:
            return list(self._at(self._places["achieved"], obs, info))
        return self._by_reward(obs, info) if self.origin.get("achieved") == _GOAL_ENV else None

    def success(self, obs: Any, info: Mapping[str, Any], reward: float, terminated: bool) -> bool:
        """Whether the step with these results accomplished the environment's task."""
        rule = self._options.get("success")
        places = [self._places["success"]] if "success" in self._places else [] if rule else _PLACES["success"]
        for place in places:
            if (found := _look(place, self.env, obs, info)) is not None:
                return bool(found)
        if terminated and "success" in self._places:
            raise EnvironmentContractError(f"expected {places[0]} at the end; {_inventory(obs, info)}")
        return terminated and (reward > 0 or rule == "terminated")

    def _by_reward(self, obs: Any, info: Any) -> list[str]:
        """The goals of a GoalEnv whose reward for what was achieved is that for achieving just them."""

        def reward(desired: Any, achieved: Any) -> float:
            return float(self.env.compute_reward(achieved, desired, info))

        achieved = obs["achieved_goal"]
        wanted = {goal: first["desired_goal"] for goal, first in self.tasks.items()}
        met = [goal for goal, desired in wanted.items() if reward(desired, achieved) >= reward(desired, desired)]
        return [self.goal({**obs, "desired_goal": achieved}, info), *met]

    def _settle(self, facet: str, option: Any, obs: Any, info: Any) -> None:
        """Note where a facet is from; nothing is noted of what is nowhere to be found."""
        if getattr(type(self), facet) is not getattr(Describer, facet):
            if option is not None:
                raise ConfigError(f"the option {facet} and {self._own} exclude each other; leave one of them out")
            self.origin[facet] = self._own
        elif isinstance(option, str) and _PLACE.fullmatch(option):
            if facet != "success" and _look(option, self.env, obs, info) is None:  # success is seen at the end
                raise ConfigError(f"option {facet}: nothing is at {option}; {_inventory(obs, info)}")
            self._places[facet] = self.origin[facet] = option
        elif option is None and facet != "success":
            self._guess(facet, obs, info)
        elif facet == "goal" and isinstance(option, str):
            self.origin[facet] = "its option"
        elif facet in ("text", "achieved") or (facet == "success" and option not in (None, "reward", "terminated")):
            raise ConfigError(f"option {facet}: expected a place such as {_PLACES[facet][-1]}, got {option!r}")

    def _guess(self, facet: str, obs: Any, info: Any) -> None:
        for place in _PLACES[facet]:
            found = _look(place, self.env, obs, info)
            if found is not None and (facet != "text" or isinstance(found, str) or _whole_numbers(found)):
                self._places[facet], self.origin[facet] = place, f"{place} (guessed)"
                return
        goals = isinstance(obs, Mapping) and {"achieved_goal", "desired_goal"} <= obs.keys()
        if facet == "achieved" and goals and hasattr(self.env, "compute_reward"):
            self.origin[facet] = _GOAL_ENV
        elif facet == "goal":
            self.origin[facet] = f"nowhere, so {_TASK!r}"

    def _name_actions(self, names: Sequence[str] | None) -> None:
        space = getattr(self.env, "action_space", None)
        if not isinstance(space, spaces.Discrete):
            raise ConfigError(
                f"expected actions in words or a Discrete action space, got {space}: set the option actions to the "
                "place of their list, such as info.admissible_commands, or write a describer (docs/gymnasium.md)"
            )
        self.names = names or self.names or [f"Action {i}" for i in range(space.n)]
        given = "its option" if names else self._own if type(self).names else "nowhere, so numbered: name them"
        self.origin["actions"] = given
        if len(self.names) != space.n:
            raise ConfigError(f"expected names of {space.n} actions, got {list(self.names)}")

    def _at(self, place: str, obs: Any, info: Any) -> Any:
        found = _look(place, self.env, obs, info)
        if found is None:
            raise EnvironmentContractError(f"expected {place} in every answer, got none; {_inventory(obs, info)}")
        return found


def in_words(value: Any) -> str:
    """A text, or a few numbers with spaces in between.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(value, str):
        return value
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iubf" or numbers.size > _MOST_NUMBERS:
        raise ConfigError(f"expected a text or at most {_MOST_NUMBERS} numbers, got {_kind(value)}; write a describer")
    return " ".join(f"{float(number):.4g}" for number in numbers.ravel())


def _look(place: str, env: Any, obs: Any, info: Any) -> Any:
    """What is at a place such as `info.admissible_commands`; None if nothing is."""
    root, *keys = place.split(".")
    found: Any = {"obs": obs, "info": info, "env": env}[root]
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else getattr(found, key, None)
    return found


def _whole_numbers(value: Any) -> bool:
    if isinstance(value, Mapping):
        return False
    numbers = np.asarray(value)
    return numbers.dtype.kind in "iub" and numbers.size <= _MOST_NUMBERS


def _kind(value: Any) -> str:
    """What an observation is, in a few words."""
    if isinstance(value, Mapping):
        return f"a mapping of {', '.join(map(str, value)) or 'nothing'}"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} {value.shape}"
    return f"a {type(value).__name__}"


def _inventory(obs: Any, info: Any) -> str:
    return f"obs is {_kind(obs)}, info {_kind(info)}"
