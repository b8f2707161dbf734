"""Playground as a whole: hand-worked episodes, its properties, and what it refuses."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacglam.envs import TextEnv, make
from sacglam.envs.playground import Playground
from sacglam.errors import ConfigError
from sacglam.types import Observation, Step

Play = Callable[[TextEnv, str, int, Sequence[int]], tuple[Observation, list[Step]]]
PICKS = st.lists(st.integers(0, 6), max_size=60)
SIMPLE, FULL = Playground(size="simple"), Playground(size="full", max_steps=60)
SIMPLE_GOALS = st.sampled_from((*SIMPLE.goals("train"), *SIMPLE.goals("heldout")))
FULL_GOALS = st.sampled_from(FULL.goals("train")) | st.sampled_from(FULL.goals("heldout"))


def test_a_simple_episode_by_hand() -> None:
    env = make("playground_simple")
    start = env.reset("Grow any blue thing", 7)
    assert start == Observation(
        "You see: red water, red food, blue cactus seed\nYou are on: nothing\nInventory: empty",
        ("Grasp", "Go to red water", "Go to red food", "Go to blue cactus seed"),
    )
    assert env.optimal_length() == 3
    at_water = Observation(start.text.replace("on: nothing", "on: red water"), start.actions)
    assert env.step(1) == Step(at_water, 0.0, (), False, False)
    with_water = Observation(
        "You see: red food, blue cactus seed\nYou are on: nothing\nInventory: red water",
        ("Grasp", "Go to red food", "Go to blue cactus seed", "Release"),
    )
    grasped = ("Grasp red water", "Grasp red supply", "Grasp any water", "Grasp any supply", "Grasp any red thing")
    assert env.step(0) == Step(with_water, 0.0, grasped, False, False)
    grown = Observation(
        "You see: red food, blue cactus\nYou are on: blue cactus\nInventory: red water",
        ("Grasp", "Go to red food", "Go to blue cactus", "Release"),
    )
    assert env.step(2) == Step(grown, 1.0, ("Grow any blue thing",), True, False)
    assert env.optimal_length() == 0


def test_a_held_out_goal_is_described_only_in_its_own_episode() -> None:
    env = make("playground_simple")
    start = env.reset("Grow blue cactus", 5)
    env.step(next(i for i, action in enumerate(start.actions) if action.endswith("water")))
    held = env.step(0)
    grown = env.step(held.observation.actions.index("Go to blue cactus seed"))
    # Not `Grow any cactus`, `Grow blue plant` and the like: they are held out as well.
    assert grown.achieved == ("Grow any blue thing", "Grow blue cactus")
    assert grown.terminated


def test_a_full_episode_by_hand() -> None:
    env = make("playground", size="full")
    goal = "Grow any cat then grasp red dog"
    start = env.reset(goal, 3)
    assert start == Observation(
        "You see: blue bush seed, blue food, red water, baby red human, baby red cat, baby red dog\n"
        "You are on: nothing\nInventory: empty",
        (
            "Grasp",
            "Go to blue bush seed",
            "Go to blue food",
            "Go to red water",
            "Go to baby red human",
            "Go to baby red cat",
            "Go to baby red dog",
        ),
    )
    assert env.optimal_length() == 6
    assert env.step(2) == Step(
        Observation(start.text.replace("on: nothing", "on: blue food"), start.actions), 0.0, (), False, False
    )
    grasped = env.step(0)
    assert grasped.observation.text == (
        "You see: blue bush seed, red water, baby red human, baby red cat, baby red dog\n"
        "You are on: nothing\nInventory: blue food"
    )
    assert grasped.observation.actions[-2:] == ("Go to baby red dog", "Release")
    assert grasped.achieved == (
        "Grasp blue food",
        "Grasp blue supply",
        "Grasp any food",
        "Grasp any supply",
        "Grasp any blue thing",
    )
    assert env.step(1).achieved == ()  # food does not grow a bush
    assert env.optimal_length() == 4
    grown = env.step(4)
    assert grown.achieved == (
        "Grow red cat",
        "Grow red animal",
        "Grow any cat",
        "Grow any animal",
        "Grow any red thing",
    )
    assert grown.observation.text == (
        "You see: blue bush seed, red water, baby red human, red cat, baby red dog\n"
        "You are on: red cat\nInventory: blue food"
    )
    released = env.step(6)
    assert released.achieved == ()
    assert released.observation.text.endswith("You are on: blue food\nInventory: empty")
    assert env.step(6).observation.text.endswith("You are on: baby red dog\nInventory: empty")
    last = env.step(0)
    dog = ["red dog", "red living_thing", "any dog", "any living_thing", "any red thing"]
    cat = ["red cat", "red animal", "any cat", "any animal", "any red thing"]
    pairs = [f"Grow {a} then grasp {b}" for a in cat for b in dog if a != b]
    assert last.achieved == (*(f"Grasp {name}" for name in dog), *pairs)
    assert goal in pairs
    assert (last.reward, last.terminated, last.truncated) == (1.0, True, False)
    assert env.optimal_length() == 0


def test_nothing_happens_to_a_grasp_of_nothing_and_the_limit_truncates(play: Play) -> None:
    start, steps = play(SIMPLE, "Grasp red cat", 0, [0] * 20)
    assert [step.observation for step in steps] == [start] * 10
    assert [step.truncated for step in steps] == [False] * 9 + [True]
    assert not any(step.achieved or step.terminated for step in steps)


def test_success_on_the_last_step_is_termination_and_not_truncation() -> None:
    env = Playground(max_steps=2)
    start = env.reset("Grasp red cat", 0)
    env.step(start.actions.index("Go to baby red cat"))
    step = env.step(0)
    assert (step.terminated, step.truncated) == (True, False)


@given(SIMPLE_GOALS, st.integers(0, 2**32), PICKS)
@settings(deadline=None, max_examples=150)
def test_the_contract_holds_in_the_simple_game(
    check_contract: Callable[..., None], goal: str, seed: int, picks: list[int]
) -> None:
    check_contract(SIMPLE, goal, seed, picks)


@given(FULL_GOALS, st.integers(0, 2**32), PICKS)
@settings(deadline=None, max_examples=75)
def test_the_contract_holds_in_the_full_game(
    check_contract: Callable[..., None], goal: str, seed: int, picks: list[int]
) -> None:
    check_contract(FULL, goal, seed, picks)


@given(SIMPLE_GOALS, st.integers(0, 2**32))
@settings(deadline=None, max_examples=15)
def test_the_planner_equals_trying_every_sequence_of_actions(play: Play, goal: str, seed: int) -> None:
    SIMPLE.reset(goal, seed)
    length = SIMPLE.optimal_length()
    assert length is not None

    def reaches(picks: Sequence[int]) -> bool:
        return play(SIMPLE, goal, seed, picks)[1][-1].terminated

    assert not any(reaches(picks) for picks in product(range(4), repeat=length - 1))
    assert any(reaches(picks) for picks in product(range(4), repeat=length))


@given(FULL_GOALS, st.integers(0, 2**32), st.lists(st.integers(0, 6), max_size=12))
@settings(deadline=None, max_examples=25)
def test_the_planner_leads_to_the_goal_from_anywhere(play: Play, goal: str, seed: int, picks: list[int]) -> None:
    start, steps = play(FULL, goal, seed, picks)
    taken = [*picks[: len(steps)]]
    left = FULL.optimal_length()
    assert left is not None
    ended = bool(steps) and steps[-1].terminated
    assert (left == 0) == ended
    while left:
        lengths = []
        for pick in range(len(start.actions)):
            play(FULL, goal, seed, [*taken, pick])
            lengths.append(FULL.optimal_length())
        assert min(length for length in lengths if length is not None) == left - 1
        taken.append(lengths.index(left - 1))
        left -= 1
    _, steps = play(FULL, goal, seed, taken)
    assert not taken or steps[-1].terminated


def test_a_scene_is_the_same_in_every_process() -> None:
    program = "from sacglam.envs import make; print(make('playground', size='full').reset('Grow any cat', 7).text)"
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": salt, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("1", "2")
    }
    assert texts == {make("playground", size="full").reset("Grow any cat", 7).text + "\n"}


def test_an_open_episode_survives_pickling() -> None:
    SIMPLE.reset("Grasp red cat", 0)
    SIMPLE.step(1)
    assert pickle.loads(pickle.dumps(SIMPLE)).step(0) == SIMPLE.step(0)


def test_a_random_policy_succeeds_as_often_as_expected(random_success: Callable[[TextEnv, int], float]) -> None:
    assert 0.30 < random_success(Playground(size="simple"), 3_000) < 0.38
    assert 0.04 < random_success(Playground(size="full"), 3_000) < 0.08


def test_what_cannot_be_played_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not a goal of playground"):
        SIMPLE.reset("Paint red cat", 0)
    with pytest.raises(ConfigError, match="playground without sequential goals"):
        SIMPLE.reset("Grow any cat then grasp red dog", 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "large"}, "'simple' or 'full'"),
        ({"num_objects": 1, "sequential": False}, "from 2"),
        ({"num_objects": 2, "sequential": True}, "from 3"),
        ({"num_objects": 97}, "to 48"),
        ({"max_steps": 0}, "at least 1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make("playground", **options)


def test_options_override_the_size() -> None:
    env = make("playground", num_objects=48, max_steps=1, sequential=True)
    assert len(env.reset("Grow any cat then grasp red dog", 0).actions) == 49
    assert env.optimal_length() == 6
    assert env.step(0).truncated
