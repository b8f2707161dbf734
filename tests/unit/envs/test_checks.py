"""The contract of an environment: what is accepted, what is refused, and that everything shipped keeps it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest

from sacglam.envs import CheckedEnv, check_env, make
from sacglam.errors import ConfigError, EnvironmentContractError
from sacglam.types import Observation, Step

STATE = Observation("here", ("Go", "Stay"))
NOTHING = Step(STATE, 0.0, (), False, False)
WON = Step(STATE, 1.0, ("win",), True, False)


@dataclass
class World:
    """Gives prepared answers, one after the other."""

    answers: tuple[Any, ...] = (NOTHING, WON)
    first: Any = STATE
    train: Any = ("win", "lose")

    def goals(self, split: str) -> Any:
        return self.train if split == "train" else ()

    def goal_type(self, goal: str) -> str:
        return "only"

    def reset(self, goal: str, seed: int) -> Any:
        self.given = iter(self.answers)
        return self.first

    def step(self, action: int) -> Any:
        return next(self.given)


def play(world: World) -> list[Step]:
    env = CheckedEnv(world, "world")
    env.goals("train")
    env.reset("win", 0)
    return [env.step(0) for _ in world.answers]


def test_what_keeps_the_contract_passes_unchanged() -> None:
    assert play(World()) == [NOTHING, WON]


def test_harmless_forms_are_converted() -> None:
    [step] = play(World((replace(WON, achieved=["win"], observation=Observation("end", ["Go"])),)))  # type: ignore[arg-type]
    assert step.achieved == ("win",)
    assert step.observation.actions == ("Go",)
    assert CheckedEnv(World(train=(goal for goal in ("a", "b"))), "world").goals("train") == ["a", "b"]


@pytest.mark.parametrize(
    ("world", "said"),
    [
        (World((replace(WON, achieved=()),)), "reward 0 without the episode's goal"),
        (World((replace(WON, reward=0.0),)), "reward 1 with the episode's goal"),
        (World((replace(NOTHING, reward=0.5),)), "reward 0 without"),
        (World((replace(NOTHING, reward=float("nan")),)), "reward 0 without"),
        (World((replace(NOTHING, achieved=("a", "a")),)), "got 'a' again"),
        (World((replace(NOTHING, achieved=("a",)), replace(NOTHING, achieved=("a",)))), "got 'a' again"),
        (World((replace(NOTHING, achieved="win"),)), "achieved as a tuple"),  # type: ignore[arg-type]
        (World((replace(WON, terminated=False),)), "to terminate it"),
        (World(((STATE, 0.0, False, False, {}),)), "step to return a sacglam.types.Step, got a tuple"),
        (World((replace(NOTHING, observation="here"),)), "step to give a sacglam.types.Observation, got a str"),  # type: ignore[arg-type]
        (World(first="here"), "reset to give a sacglam.types.Observation, got a str"),
        (World(first=Observation("here", ())), "at least one action"),
        (World(first=Observation("here", ("Go", "Stay", "Go"))), r"\['Go'\] more than once"),
        (World((replace(NOTHING, observation=Observation("there", ())),)), "at least one action"),
        (World(train={"a", "b"}), "in a fixed order"),
        (World(train=()), "at least one goal"),
        (World(train=("a", "a")), "each goal once"),
        (World(train=7), "in a fixed order"),
        (World((NOTHING,) * 10_000), "an end within 10,000 steps"),
    ],
)
def test_what_breaks_the_contract_is_named(world: World, said: str) -> None:
    with pytest.raises(EnvironmentContractError, match=said):
        play(world)


def test_misuse_is_refused() -> None:
    env = CheckedEnv(World(), "world")
    with pytest.raises(EnvironmentContractError, match="no episode is running"):
        env.step(0)
    with pytest.raises(EnvironmentContractError, match="no episode was started"):
        env.optimal_length()
    env.reset("win", 0)
    for action in (-1, 2):
        with pytest.raises(EnvironmentContractError, match=f"an action from 0 to 1, got {action}"):
            env.step(action)
    assert [env.step(action) for action in (1, 0)] == [NOTHING, WON]
    assert env.optimal_length() is None
    with pytest.raises(EnvironmentContractError, match="no episode is running"):
        env.step(0)


@pytest.mark.parametrize("name", ["builtins:dict", "builtins:list", "collections:OrderedDict"])
def test_a_factory_that_makes_no_environment_is_refused(name: str) -> None:
    with pytest.raises((EnvironmentContractError, ConfigError)):
        make(name)


@pytest.mark.parametrize("name", ["playground", "playground_simple", "bitflip"])
def test_what_is_shipped_keeps_the_contract(name: str) -> None:
    trial = check_env(lambda: make(name), episodes=20)
    assert trial.episodes == 20
    assert trial.steps > 20


def test_an_environment_that_does_not_repeat_itself_is_found() -> None:
    numbers = count()

    class Moody(World):
        def reset(self, goal: str, seed: int) -> Any:
            super().reset(goal, seed)
            return Observation(f"state {next(numbers)}", ("Go", "Stay"))

    make_moody: Callable[[], CheckedEnv] = lambda: CheckedEnv(Moody(), "moody")  # noqa: E731
    with pytest.raises(EnvironmentContractError, match="does not repeat itself"):
        check_env(make_moody)
