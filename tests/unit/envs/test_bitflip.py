"""Bit flipping: by hand, by its known optimum, and by the exact success rate of a random policy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacglam.envs import TextEnv, make
from sacglam.envs.bitflip import BitFlip
from sacglam.errors import ConfigError
from sacglam.types import Observation, Step

ENV = BitFlip(bits=4, max_steps=6)
GOALS = st.sampled_from(ENV.goals("train"))


def test_an_episode_by_hand() -> None:
    env = make("bitflip", bits=2, max_steps=3)
    start = next(seed for seed in range(99) if env.reset("A b", seed).text == "Bits: a B")
    first = Observation("Bits: a B", ("Make A", "Make b"))
    second = Observation("Bits: a b", ("Make A", "Make B"))
    assert env.reset("A b", start) == first
    assert env.optimal_length() == 2
    assert env.step(1) == Step(second, 0.0, ("a b",), False, False)
    # Back at the start: achieved now, since no step had reached it.
    assert env.step(1) == Step(first, 0.0, ("a B",), False, False)
    assert env.step(1) == Step(second, 0.0, (), False, True)
    assert env.optimal_length() == 1


def test_furniture_by_hand() -> None:
    env = make("bitflip", bits=2, text="furniture")
    start = next(seed for seed in range(99) if "red door, blue chair" in env.reset("blue door, red chair", seed).text)
    first = Observation("You see: red door, blue chair", ("Make blue door", "Make red chair"))
    assert env.reset("blue door, red chair", start) == first
    step = env.step(0)
    assert step.observation == Observation("You see: blue door, blue chair", ("Make red door", "Make red chair"))
    assert step.achieved == ("blue door, blue chair",)
    assert env.step(1).terminated
    assert list(env.goals("train"))[1] == "blue door, red chair"


@given(GOALS, st.integers(0, 2**32), st.lists(st.integers(0, 3), max_size=10))
@settings(deadline=None)
def test_the_contract_holds(check_contract: Callable[..., None], goal: str, seed: int, picks: list[int]) -> None:
    check_contract(ENV, goal, seed, picks)


@given(GOALS, st.integers(0, 2**32))
@settings(deadline=None)
def test_flipping_each_wrong_bit_is_optimal(goal: str, seed: int) -> None:
    observation = ENV.reset(goal, seed)
    length = ENV.optimal_length()
    wrong = [
        i for i, (now, then) in enumerate(zip(observation.text.split()[1:], goal.split(), strict=True)) if now != then
    ]
    assert length == len(wrong) > 0
    for left, bit in zip(reversed(range(len(wrong))), wrong, strict=True):
        step = ENV.step(bit)
        assert ENV.optimal_length() == left
        assert step.terminated == (left == 0)


def test_the_start_is_every_string_but_the_goal() -> None:
    env = BitFlip(bits=3)
    for goal in env.goals("train"):
        starts = {env.reset(goal, seed).text.removeprefix("Bits: ") for seed in range(200)}
        assert starts == set(env.goals("train")) - {goal}


def success_of_a_random_policy(bits: int, max_steps: int) -> float:
    """Exact: the distance to the goal is a Markov chain that falls with probability d / bits and rises otherwise."""
    starts = 2**bits - 1
    count = 1
    at = [0.0] * (bits + 1)
    for distance in range(1, bits + 1):
        count = count * (bits - distance + 1) // distance
        at[distance] = count / starts
    for _ in range(max_steps):
        after = [at[0]] + [0.0] * bits
        for distance in range(1, bits + 1):
            after[distance - 1] += at[distance] * distance / bits
            if distance < bits:
                after[distance + 1] += at[distance] * (1 - distance / bits)
        at = after
    return at[0]


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_random_policy_succeeds_as_often_as_computed(
    random_success: Callable[[TextEnv, int], float], bits: int
) -> None:
    expected = success_of_a_random_policy(bits, bits)
    assert random_success(BitFlip(bits=bits), 4_000) == pytest.approx(expected, abs=0.025)


def test_the_goals_are_all_bit_strings_in_order_of_their_numbers() -> None:
    assert list(BitFlip(bits=2).goals("train")) == ["a b", "A b", "a B", "A B"]
    goals = BitFlip(bits=16).goals("train")
    assert len(set(goals)) == len(goals) == 65_536
    assert goals[0] == " ".join("abcdefghijklmnop")
    assert goals[-1] == goals[0].upper()
    number = 12_345
    assert [letter.isupper() for letter in goals[number].split()] == [bool(number >> bit & 1) for bit in range(16)]


@pytest.mark.parametrize("bits", [0, 17])
def test_a_number_of_bits_out_of_range_is_refused(bits: int) -> None:
    with pytest.raises(ConfigError, match="expected bits from 1 to 16"):
        BitFlip(bits=bits)


def test_options_out_of_range_for_a_writing_are_refused() -> None:
    with pytest.raises(ConfigError, match="text 'furniture': expected bits from 1 to 10, got 11"):
        BitFlip(bits=11, text="furniture")
    with pytest.raises(ConfigError, match="one of letters, furniture, got 'runes'"):
        make("bitflip", text="runes")
    with pytest.raises(ConfigError, match="at least 1"):
        BitFlip(max_steps=0)


@pytest.mark.parametrize("goal", ["", "a B c", "a B c e", "b A c d", "a  B c d"])
def test_what_is_no_goal_is_refused(goal: str) -> None:
    with pytest.raises(ConfigError, match=r"not a goal of bitflip .* expected one like"):
        ENV.reset(goal, 0)
