"""The contract of an environment, held at every step; and a trial that shows whether a whole environment keeps it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from typing_extensions import override

from sacglam.envs.base import Split, TextEnv
from sacglam.errors import EnvironmentContractError
from sacglam.types import Observation, Step

MOST_STEPS = 10_000
"""Steps of an episode that neither terminates nor is truncated, after which it counts as endless."""
_TRIAL_EPISODES, _TRIAL_STEPS = 8, 50
_CONTEXT = 50  # characters before the first difference of two answers; twice as many are shown after it


def check_actions(observation: Observation) -> None:
    """Refuse a list of actions on which no policy can be defined.

    Raises:
        EnvironmentContractError: the list is empty, an action has no text, or two have the same.
    """
    actions, shown = observation.actions, f"in the state:\n{observation.text}"
    if not actions:
        raise EnvironmentContractError(f"expected at least one action, got none, {shown}")
    if not all(isinstance(action, str) and action.strip() for action in actions):
        raise EnvironmentContractError(f"expected actions of at least one word, got {actions} {shown}")
    if len(set(actions)) != len(actions):
        repeated = sorted({action for action in actions if actions.count(action) > 1})
        raise EnvironmentContractError(
            f"expected distinct actions, got {repeated} more than once, {shown}\n"
            "Give each action its own text, or list it once."
        )


class CheckedEnv(TextEnv):
    """An environment whose every answer is checked against the contract of `TextEnv`, and every call against the state.

    Sequences of other types than the protocol's are converted where nothing is lost.
    """

    def __init__(self, env: Any, name: str) -> None:
        """`env` goes by `name` in messages.

        Raises:
            EnvironmentContractError: `env` lacks a method of `TextEnv`.
        """
        self._env, self._name = env, name
        missing = [method for method in ("goals", "goal_type", "reset", "step") if not callable(_member(env, method))]
        if missing:
            raise self._broken(f"an object with the methods of TextEnv, got a {type(env).__name__} without {missing}")
        self._planner: Callable[[], int | None] = _member(env, "optimal_length") or (lambda: None)
        self._goals: dict[Split, Sequence[str]] = {}
        self._goal = ""
        self._achieved: set[str] = set()
        self._steps = 0
        self._choices: int | None = None  # actions of the current state, 0 after the episode; None before the first

    @override
    def goals(self, split: Split) -> Sequence[str]:
        if split not in self._goals:
            found = self._env.goals(split)
            if isinstance(found, Set) or not isinstance(found, Iterable):
                raise self._broken(f"goals({split!r}) in a fixed order, such as a list; got a {type(found).__name__}")
            goals = found if isinstance(found, tuple | list) else [str(goal) for goal in found]
            if split == "train" and not goals:
                raise self._broken("at least one goal to train on, got none")
            if len(set(goals)) != len(goals):
                raise self._broken(f"each goal once, got {Counter(goals).most_common(1)[0][0]!r} several times")
            self._goals[split] = goals
        return self._goals[split]

    @override
    def goal_type(self, goal: str) -> str:
        found = self._env.goal_type(goal)
        if not isinstance(found, str):
            raise self._broken(f"goal_type({goal!r}) as text, got {found!r}")
        return found

    @override
    def reset(self, goal: str, seed: int) -> Observation:
        self._goal, self._achieved, self._steps, self._choices = goal, set(), 0, None
        observation = self._observation(self._env.reset(goal, seed), "reset")
        self._choices = len(observation.actions)
        return observation

    @override
    def step(self, action: int) -> Step:
        if not self._choices:
            raise self._broken("a call of reset before this step: no episode is running")
        if not 0 <= action < self._choices:
            raise self._broken(f"an action from 0 to {self._choices - 1}, got {action}")
        step = self._env.step(action)
        if not isinstance(step, Step):
            raise self._broken(f"step to return a sacglam.types.Step, got a {type(step).__name__}")
        observation = self._observation(step.observation, "step")
        self._steps += 1
        self._choices = 0 if step.terminated or step.truncated else len(observation.actions)
        achieved = tuple(step.achieved) if isinstance(step.achieved, Collection) else ()
        if isinstance(step.achieved, str) or not all(isinstance(goal, str) for goal in achieved):
            raise self._broken(f"achieved as a tuple of goals, got {step.achieved!r}")
        again = [goal for goal, count in Counter(achieved).items() if count > 1 or goal in self._achieved]
        if again:
            raise self._broken(f"a goal in achieved at the first step that achieves it, got {again[0]!r} again")
        self._achieved.update(achieved)
        success = self._goal in achieved
        if step.reward != float(success):
            raise self._broken(
                f"reward {float(success):g} {'with' if success else 'without'} the episode's goal in achieved, got "
                f"{step.reward} (goal {self._goal!r}, achieved {achieved})"
            )
        if success and not step.terminated:
            raise self._broken("the step that achieves the episode's goal to terminate it; it did not")
        if self._steps >= MOST_STEPS and not (step.terminated or step.truncated):
            raise self._broken(f"an end within {MOST_STEPS:,} steps; truncate episodes that take too long")
        if achieved is step.achieved and observation is step.observation:
            return step
        return replace(step, observation=observation, achieved=achieved)

    @override
    def optimal_length(self) -> int | None:
        if self._choices is None:
            raise self._broken("a call of reset before optimal_length: no episode was started")
        return self._planner()

    def tasks(self) -> Sequence[str]:
        """The training goals that an evaluation draws from: all, unless the environment's own `tasks` names some."""
        return (_member(self._env, "tasks") or (lambda: self.goals("train")))()

    def notes(self) -> Sequence[str]:
        """Lines for the user at the start of a run, such as what was guessed; from the environment's own `notes`."""
        return (_member(self._env, "notes") or tuple)()

    def _observation(self, found: Any, method: str) -> Observation:
        if not isinstance(found, Observation) or not isinstance(found.text, str):
            raise self._broken(f"{method} to give a sacglam.types.Observation, got a {type(found).__name__}")
        if not isinstance(found.actions, tuple):
            found = replace(found, actions=tuple(found.actions))
        check_actions(found)
        return found

    def _broken(self, expected: str) -> EnvironmentContractError:
        return EnvironmentContractError(f"environment {self._name!r}: expected {expected}; see docs/environments.md")


def evaluation_goals(env: TextEnv, split: Split) -> Sequence[str]:
    """The goals of `split` that an evaluation draws from: of the training goals, the environment's `tasks`, if any."""
    tasks = _member(env, "tasks") if split == "train" else None
    found: Sequence[str] = tasks() if tasks else env.goals(split)
    return found


def _member(env: Any, name: str) -> Any:
    """A method of an object that may lack it: what users bring is not known to follow the protocol."""
    return getattr(env, name, None)


@dataclass(frozen=True)
class Trial:
    """What a trial of an environment saw."""

    episodes: int
    steps: int
    successes: int
    goals: int
    most_actions: int
    notes: tuple[str, ...]


def check_env(make_env: Callable[[], TextEnv], episodes: int = _TRIAL_EPISODES, repeats: bool = True) -> Trial:
    """Play random episodes in two copies at once, and hold their answers against the contract and each other.

    The second copy plays a step of another episode before each, which must not matter. If the environment need not
    repeat itself (`repeats` false), there is one copy. For tests of your own:
    `check_env(lambda: CheckedEnv(House(), "house"), 100)`.

    Raises:
        EnvironmentContractError: an answer breaks the contract, or the copies differ.
    """
    copies = [make_env() for _ in range(2 if repeats else 1)]
    first, *others = copies
    goals = first.goals("train")
    if any(list(goals) != list(other.goals("train")) for other in others):
        raise EnvironmentContractError("two copies of the environment list different goals; give them a fixed order")
    rng = Random(0)
    steps = successes = most = 0
    for episode in range(episodes):
        goal, seed = goals[rng.randrange(len(goals))], rng.randrange(2**31)
        first.goal_type(goal)
        for other in others:
            other.reset(goals[0], episode)
            other.step(0)
        shown = f"goal {goal!r}, seed {seed}"
        observation = _agreed([copy.reset(goal, seed) for copy in copies], f"at the start of {shown}")
        for t in range(1, _TRIAL_STEPS + 1):
            most = max(most, len(observation.actions))
            action = rng.randrange(len(observation.actions))
            step = _agreed([copy.step(action) for copy in copies], f"after {t} steps of {shown}")
            observation, steps = step.observation, steps + 1
            if step.terminated or step.truncated:
                successes += goal in step.achieved
                break
    notes = tuple((_member(first, "notes") or tuple)())
    return Trial(episodes, steps, successes, len(goals), most, notes)


def _agreed(answers: list[Any], when: str) -> Any:
    """The answer of all copies."""
    if answers[0] != answers[-1]:
        said = [repr(answer) for answer in (answers[0], answers[-1])]
        start = next((i for i, (a, b) in enumerate(zip(*said, strict=False)) if a != b), 0) - _CONTEXT
        shown = [f"...{text[max(start, 0) :][: 3 * _CONTEXT]}..." for text in said]
        raise EnvironmentContractError(
            f"the environment does not repeat itself: {when}, one copy answers {shown[0]}, another {shown[1]}. "
            "Draw all randomness from a generator that reset seeds with its seed; or set env.repeats to false, and "
            "train without exact resume"
        )
    return answers[0]
