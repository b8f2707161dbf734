"""Enforces the environment contract at every call and every return value."""

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from math import isfinite
from typing import Any, Self, TypeVar

from typing_extensions import override

from sacglam.envs.base import Split, TextEnv
from sacglam.envs.calls import Call
from sacglam.envs.conversion import Unmet, flag, number, shown, text, texts, whole
from sacglam.errors import EnvironmentContractError
from sacglam.types import Observation, Step

T = TypeVar("T")
MAX_STEPS = 10_000
"""An episode that has neither terminated nor been truncated after this many steps counts as endless."""
_ALL_TYPES = "overall"  # the key of all types in success by goal type
_ANYTIME = ("goals", "goal_type", "reset", "tasks", "notes")  # calls that do not concern a state
_MAX_TEXT = 1000  # characters shown of an observation


class CheckedEnv(TextEnv):
    """Checks every return value of an environment against the `TextEnv` contract, and every call against its state.

    Return values become plain Python where that loses nothing: lists become tuples, numpy numbers become ints and
    floats. Any exception becomes an `EnvironmentContractError` that names the environment, the method and the episode.
    The environment is closed, if it has a `close`, once nothing refers to the `CheckedEnv` any more.
    """

    def __init__(self, env: Any, name: str) -> None:
        """Wrap `env`; messages call it `name`.

        Raises:
            EnvironmentContractError: `env` lacks a method of `TextEnv`.
        """
        self._env: Any = env._env if type(env) is CheckedEnv else env  # a factory may call `make`
        self.name, self._goal, self._seed, self._taken = name, "", 0, list[int]()
        self.own_rewards = False
        self._choices: int | None = None  # actions of the current state, 0 after the episode; None before the first
        self._goals: dict[Split, Sequence[str]] = {}
        self._achieved: set[str] = set()
        missing = [
            method for method in ("goals", "goal_type", "reset", "step") if not callable(getattr(env, method, None))
        ]
        if missing:
            raise EnvironmentContractError(
                f"environment {name!r}: expected an object with the methods of TextEnv, got a {type(env).__name__} "
                f"without {missing}; see docs/start/environments.md"
            )
        self._close = weakref.finalize(self, (lambda: None) if self._lacks("close") else env.close)

    def rewarding(self, own_rewards: bool) -> Self:
        """This environment, with its own rewards, which may be any number, or with 1 for the goal."""
        self.own_rewards = own_rewards
        return self

    def begin_call(self, method: str, *given: Any) -> None:
        """Make an environment on a server start the next call now, so that the calls of several copies overlap."""
        if not self._lacks("begin_call"):
            with Call(self._at, method, given):
                self._env.begin_call(method, *given)

    @override
    def goals(self, split: Split) -> Sequence[str]:
        if split not in self._goals:
            self._goals[split] = self._call(partial(_goals, split=split), "goals", split)
        return self._goals[split]

    @override
    def goal_type(self, goal: str) -> str:
        return self._call(_goal_type, "goal_type", goal)

    @override
    def reset(self, goal: str, seed: int) -> Observation:
        self._goal, self._seed = goal, seed
        self._achieved, self._taken, self._choices = set(), [], None
        observation = self._call(partial(_observation, method="reset"), "reset", goal, seed)
        self._choices = len(observation.actions)
        return observation

    @override
    def step(self, action: int) -> Step:
        if not self._choices:
            raise self._broken("step", (action,), "a call to reset before this step: no episode is running")
        if not 0 <= action < self._choices:
            raise self._broken("step", (action,), f"an action from 0 to {self._choices - 1}, got {action}")
        step = self._call(self._step, "step", action)
        self._taken.append(action)
        self._choices = 0 if step.terminated or step.truncated else len(step.observation.actions)
        return step

    def _step(self, returned: Any) -> Step:
        """Convert the return value of `step` to plain values and check it against the episode so far."""
        if not isinstance(returned, Step):
            raise Unmet(f"step to return a sacglam.types.Step, got a {type(returned).__name__}")
        observation, achieved = _observation(returned.observation, "step"), texts(returned.achieved, "achieved")
        terminated, truncated = flag(returned.terminated, "terminated"), flag(returned.truncated, "truncated")
        if len(set(achieved)) != len(achieved) or not self._achieved.isdisjoint(achieved):
            again = next(goal for goal in achieved if achieved.count(goal) > 1 or goal in self._achieved)
            raise Unmet(f"a goal in achieved at the first step that achieves it, got {again!r} again")
        self._achieved.update(achieved)
        success = self._goal in achieved
        if self.own_rewards:
            own = returned.reward if returned.own_reward is None else returned.own_reward
            reward = number(own, "the environment's own reward")
            if not isfinite(reward):
                raise Unmet(f"a finite reward, got {reward}")
        elif (reward := number(returned.reward, "the reward")) != success:
            raise Unmet(
                f"reward {float(success):g} {'with' if success else 'without'} the episode's goal in achieved, got "
                f"{shown(returned.reward)} (goal {shown(self._goal)}, achieved {shown(achieved)}); list the goal "
                "when it is achieved, or set env.reward to environment to learn from the environment's own rewards"
            )
        if success and not terminated:
            raise Unmet("the step that achieves the episode's goal to terminate it; it did not")
        if len(self._taken) + 1 >= MAX_STEPS and not (terminated or truncated):
            raise Unmet(f"an end within {MAX_STEPS:,} steps; truncate episodes that take too long")
        return Step(observation, float(reward), achieved, terminated, truncated)

    @override
    def optimal_length(self) -> int | None:
        if self._choices is None:
            raise self._broken("optimal_length", (), "a call to reset before this: no episode was started")
        return None if self._lacks("optimal_length") else self._call(partial(whole, what="a length"), "optimal_length")

    @override
    def expert(self) -> int | None:
        """A good action in this state, by the environment's `expert`; None if none is known or the episode is over."""
        if not self._choices or self._lacks("expert"):
            return None
        action = self._call(partial(whole, what="an action"), "expert")
        if action is not None and action >= self._choices:
            raise self._broken("expert", (), f"an action below {self._choices}, or None; got {action}")
        return action

    @override
    def close(self) -> None:
        self._close()

    def so_far(self) -> tuple[str, int, Sequence[int]]:
        """Goal, seed and actions of the current episode so far, which bring another copy to the same state."""
        return self._goal, self._seed, self._taken

    @override
    def tasks(self) -> Sequence[str]:
        """The training goals to evaluate on: all of them unless the environment defines `tasks`."""
        goals = self.goals("train")
        return goals if self._lacks("tasks") else self._call(partial(_tasks, goals=goals), "tasks")

    def notes(self) -> Sequence[str]:
        """Lines to show when a run starts, such as what was guessed; from the environment's `notes`, if any."""
        return () if self._lacks("notes") else self._call(partial(texts, what="the notes"), "notes")

    def _lacks(self, method: str) -> bool:
        """Whether the environment lacks an optional method. The look-up itself may run the environment's code."""
        with Call(lambda: f"environment {self.name!r}, its attribute {method}"):
            return getattr(self._env, method, None) is None

    def _call(self, convert: Callable[[Any], T], method: str, *given: Any) -> T:
        """Call the environment and pass what it returns through `convert`; an error in either names the call."""
        with Call(self._at, method, given):
            try:
                return convert(getattr(self._env, method)(*given))
            except Unmet as unmet:
                raise self._broken(method, given, str(unmet)) from None

    def _at(self, method: str, given: Sequence[Any]) -> str:
        call = f"environment {self.name!r}, {method}({', '.join(map(shown, given))})"
        if method == "step":
            call += f" after {len(self._taken)} steps"
        return f"{call}, goal {shown(self._goal)}, seed {self._seed}" if method not in _ANYTIME else call

    def _broken(self, method: str, given: Sequence[Any], expected: str) -> EnvironmentContractError:
        return EnvironmentContractError(
            f"{self._at(method, given)}: expected {expected.rstrip('.')}; see docs/start/environments.md"
        )


def check_types(goals: Iterable[str], goal_type: Callable[[str], str], known: Collection[str]) -> None:
    """Check that the types of goals, achieved or pursued, are `known`: those of the training goals.

    Raises:
        EnvironmentContractError: one is not.
    """
    for goal in goals:
        if (found := goal_type(goal)) not in known:
            raise EnvironmentContractError(
                f"expected goals of the training goals' types ({', '.join(known)}), got {shown(goal)} of type "
                f"{found!r}; list only training goals and the episode's own goal in Step.achieved"
            )


def check_actions(observation: Observation) -> None:
    """Reject (`EnvironmentContractError`) an action list that is empty, lacks a text, or has one twice."""
    try:
        _observation(observation, "the caller")
    except Unmet as unmet:
        raise EnvironmentContractError(f"expected {unmet}") from None


def _observation(returned: Any, method: str) -> Observation:
    if not isinstance(returned, Observation):
        raise Unmet(f"{method} to give a sacglam.types.Observation, got a {type(returned).__name__}")
    seen, actions = text(returned.text, "the observation's text"), texts(returned.actions, "its actions")
    state = f"in the state:\n{seen[:_MAX_TEXT]}"
    if not actions:
        raise Unmet(f"at least one action, got none, {state}")
    if not all(map(str.strip, actions)):
        raise Unmet(f"actions of at least one word, got {shown(actions)} {state}")
    if len(set(actions)) != len(actions):
        repeated = sorted({action for action in actions if actions.count(action) > 1})
        raise Unmet(
            f"distinct actions, got {shown(repeated)} more than once, {state}\n"
            "Give each action its own text, or list it once."
        )
    if type(returned) is Observation and seen is returned.text and actions is returned.actions:
        return returned
    return Observation(seen, actions)


def _goals(returned: Any, split: Split) -> Sequence[str]:
    goals = texts(returned, "goals")
    if split == "train" and not goals:
        raise Unmet("at least one goal to train on, got none")
    if len(set(goals)) != len(goals):
        raise Unmet(f"each goal once, got {shown(Counter(goals).most_common(1)[0][0])} several times")
    return goals if goals is returned else list(goals)


def _tasks(returned: Any, goals: Sequence[str]) -> Sequence[str]:
    tasks = texts(returned, "tasks")
    if not tasks or not {*tasks} <= {*goals}:
        raise Unmet(f"tasks to name training goals, at least one; got {shown(tasks)}")
    return tasks if tasks is returned else list(tasks)


def _goal_type(returned: Any) -> str:
    kind = text(returned, "a goal's type")
    if kind in ("", _ALL_TYPES):  # in Aim too, the curve without a type is the overall one
        raise Unmet(f"a goal's type other than '' and {_ALL_TYPES!r}, which stands for all types; got {kind!r}")
    return kind
