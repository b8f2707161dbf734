"""Files of demonstrations: what is written is read again, and what does not fit is named by its line."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacglam import config as configuration
from sacglam.envs import CheckedEnv, make
from sacglam.envs.bitflip import BitFlip
from sacglam.errors import DemonstrationError
from sacglam.replay import demonstrations
from sacglam.replay.buffer import ReplayBuffer
from sacglam.types import Decision, Episode, Step

BITS: dict[str, Any] = {"bits": 2, "max_steps": 3}
GOOD = {"goal": "A B", "seed": 4, "actions": ["Make B"]}  # from `A b`


def played(env: CheckedEnv, goal: str, seed: int) -> Episode:
    """An episode of random actions."""
    rng, first, decisions, steps = Random(seed), env.reset(goal, seed), [], []
    seen = first
    while not (steps and (steps[-1].terminated or steps[-1].truncated)):
        decisions.append(Decision(rng.randrange(len(seen.actions)), 0.0, 0))
        steps.append(env.step(decisions[-1].action))
        seen = steps[-1].observation
    return Episode(goal, first, tuple(decisions), tuple(steps), seed)


class Costly(BitFlip):
    """Every step costs 1."""

    def step(self, action: int) -> Step:
        return replace(super().step(action), own_reward=-1.0)


def lines(file: Path, *values: Any) -> Path:
    file.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in values))
    return file


@pytest.mark.parametrize("repeats", [True, False])
@given(seeds=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4), data=st.data())
@settings(max_examples=10, deadline=None)
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, repeats: bool, seeds: list[int], data: st.DataObject
) -> None:
    env = make("playground_simple")
    goals = data.draw(st.lists(st.sampled_from(env.goals("train")), min_size=len(seeds), max_size=len(seeds)))
    episodes = [played(env, goal, seed) for goal, seed in zip(goals, seeds, strict=True)]
    file = tmp_path_factory.mktemp("demonstrations") / "file.jsonl"
    done: list[int] = []
    successes = demonstrations.write(file, episodes, repeats, "goal", done.append)
    assert list(demonstrations.read(file, make("playground_simple"), repeats)) == episodes
    assert done == [*range(1, len(episodes) + 1)]
    assert successes == sum(each.success for each in episodes)


def test_an_episode_that_does_not_fit_the_replay_is_named(tmp_path: Path) -> None:
    env, file = make("bitflip", **BITS), tmp_path / "file.jsonl"
    demonstrations.write(file, [played(env, "A B", 0)], False, "goal", lambda _: None)
    ring = ReplayBuffer(configuration.load(None).replay, lambda goal: "any" if goal == "A B" else "other", {"any": 1})
    with pytest.raises(DemonstrationError, match=r"file.jsonl, episode 1: expected goals of .* of type 'other'"):
        demonstrations.Demonstrations.load(file, env, False, ring)


@pytest.mark.parametrize("repeats", [True, False])
def test_own_rewards_are_written_and_read_again(repeats: bool, tmp_path: Path) -> None:
    def costly() -> CheckedEnv:
        return CheckedEnv(Costly(**BITS), "costly").rewarding(True)

    episodes = [played(costly(), "A B", seed) for seed in range(3)]
    assert {step.reward for episode in episodes for step in episode.steps} == {-1.0}
    demonstrations.write(tmp_path / "file", episodes, repeats, "environment", lambda done: None)
    assert list(demonstrations.read(tmp_path / "file", costly(), repeats)) == episodes


def test_a_file_of_blank_lines_is_empty(tmp_path: Path) -> None:
    with pytest.raises(DemonstrationError, match="is empty"):
        list(demonstrations.read(lines(tmp_path / "file", "", " "), make("bitflip", **BITS)))


def test_a_line_that_is_too_long_is_named_by_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = lines(tmp_path / "file", GOOD, {**GOOD, "actions": ["Make B"] * 100})
    monkeypatch.setattr(demonstrations, "_LONGEST", 500)
    with pytest.raises(DemonstrationError, match="line 2: expected a line of at most 500 bytes, got a longer one"):
        list(demonstrations.read(file, make("bitflip", **BITS)))


def test_goal_seed_and_actions_are_enough(tmp_path: Path) -> None:
    [episode] = demonstrations.read(lines(tmp_path / "file", GOOD, ""), make("bitflip", **BITS))
    assert (episode.start.text, episode.action(0), episode.success) == ("Bits: A b", "Make B", True)
    assert episode.decisions == (Decision(1, 0.0, 0),)


def whole(**changes: Any) -> dict[str, Any]:
    """A whole episode of one step, with changes to that step."""
    seen = {"text": "Bits: A b", "candidates": ["Make a", "Make B"]}
    step = {**seen, "action": "Make B", "reward": 1, "achieved": ["A B"], "terminated": True, "truncated": False}
    return {"goal": "A B", "seed": 0, "steps": [{**step, **changes}], "last": {**seen, "text": "Bits: A B"}}


BAD: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "Invalid JSON: EOF while parsing an object at line 1 column 1 (got b'{')"),
    "no object": ([1], "line 3: Input should be an object (got [1])"),
    "another type": ({**GOOD, "seed": "0"}, "seed: Input should be a valid integer (got '0')"),
    "a negative seed": ({**GOOD, "seed": -1}, "seed: Input should be greater than or equal to 0 (got -1)"),
    "a missing key": ({"goal": "A B", "actions": ["Make B"]}, "seed: Field required"),
    "an unknown key": ({**GOOD, "reward": 1}, "reward: Extra inputs are not permitted (got 1)"),
    "no actions": ({**GOOD, "actions": []}, "actions: Tuple should have at least 1 item"),
    "an unknown goal": (
        {**GOOD, "goal": "A C"},
        "expected a training goal of the environment, such as 'A b'; got 'A C'",
    ),
    "no candidate": ({**GOOD, "actions": ["Make b"]}, "action 1: expected one of ('Make a', 'Make B'), got 'Make b'"),
    "too long": ({**GOOD, "actions": ["Make B", "Make b"]}, "the episode ends after 1 actions, but the line has 2"),
    "another transcript": ({**GOOD, "transcript": "0"}, "expected the texts, candidate actions and rewards that were"),
    "a whole one's type": (whole(reward="1"), "steps.0.reward: Input should be a valid number (got '1')"),
    "a whole one's candidate": (whole(action="Sit"), "action 1: expected one of ('Make a', 'Make B'), got 'Sit'"),
    "a whole one's reward": (whole(reward=0), "expected reward 1 with the episode's goal in achieved, got 0"),
    "a whole one's end": (whole(terminated=False), "the step that achieves the episode's goal to terminate it"),
    "candidates alike": (whole(candidates=["Make B", "Make B"]), "distinct actions, got ['Make B'] more than once"),
    "the environment's own rewards": (
        {**whole(), "rewards": "environment"},
        "expected rewards recorded with env.reward=goal, as in this run, got environment",
    ),
    "half of a whole one": ({**whole(), "last": None}, "expected `actions`, or `steps` and `last`; got "),
    "an achieved goal": (whole(achieved=["A B", "C"]), "'C' is not a goal of bitflip"),
}


@pytest.mark.parametrize(("bad", "message"), BAD.values(), ids=BAD)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, bad: Any, message: str) -> None:
    episodes = demonstrations.read(lines(tmp_path / "file", GOOD, whole(), bad), make("bitflip", **BITS))
    assert [next(episodes).success, next(episodes).success] == [True, True]
    with pytest.raises(DemonstrationError) as raised:
        next(episodes)
    assert f"{tmp_path / 'file'}, line 3: " in str(raised.value)
    assert message in str(raised.value)


def test_actions_are_not_enough_where_an_environment_does_not_repeat(tmp_path: Path) -> None:
    with pytest.raises(DemonstrationError, match=r"line 1: expected with env.repeats false `steps` and `last`"):
        list(demonstrations.read(lines(tmp_path / "file", GOOD), make("bitflip", **BITS), repeats=False))


def test_a_changed_environment_is_another(tmp_path: Path) -> None:
    env = make("playground_simple")
    episode = played(env, env.goals("train")[0], 3)
    demonstrations.write(tmp_path / "file", [episode], True, "goal", print)
    with pytest.raises(DemonstrationError, match=r"line 1: (expected the texts|action \d+: expected one of)"):
        list(demonstrations.read(tmp_path / "file", make("playground_simple", num_objects=4)))


@pytest.mark.parametrize("make_bad", [Path.mkdir, Path.touch, lambda file: None], ids=["folder", "empty", "missing"])
def test_what_is_no_file_of_episodes_is_refused(tmp_path: Path, make_bad: Callable[[Path], Any]) -> None:
    make_bad(tmp_path / "file")
    with pytest.raises(DemonstrationError, match=r"cannot read the demonstrations|is empty"):
        list(demonstrations.read(tmp_path / "file", make("bitflip", **BITS)))


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    file = lines(tmp_path / "file", GOOD)
    with pytest.raises(DemonstrationError, match="already exists"):
        demonstrations.write(file, [], True, "goal", print)
    assert json.loads(file.read_text()) == GOOD


def test_a_long_file_is_read_in_little_memory(tmp_path: Path) -> None:
    file, env = tmp_path / "file", make("bitflip", **BITS)
    [episode] = demonstrations.read(lines(tmp_path / "one", GOOD), env)
    demonstrations.write(file, (replace(episode) for _ in range(20_000)), True, "goal", lambda done: None)
    assert file.stat().st_size > 2_000_000
    tracemalloc.start()
    count = sum(1 for _ in demonstrations.read(file, env))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (count, peak < 500_000) == (20_000, True)
