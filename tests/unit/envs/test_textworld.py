"""TextWorld: a game by hand, and what a step achieved against the facts of the library's second engine."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from huggingface_hub import constants

from sacglam.envs import describe, make
from sacglam.envs.textworld import TextWorld
from sacglam.errors import ConfigError, EnvironmentContractError

textworld = pytest.importorskip("textworld", reason="needs the extra textworld, whose jericho builds with gcc")
pytestmark = pytest.mark.filterwarnings("ignore:Game .* is not fully supported")  # by Jericho alone

STUDIO = {"games": 1, "first_seed": 1, "rooms": 2, "objects": 8}
"""A studio with a box, a mantelpiece and a key, and a teacup in hand; a spare room with a cane in a safe."""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of compiled games, empty at first."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HOME", str(home))
        yield home / "sacglam" / "textworld"


def test_what_cannot_be_compiled_is_explained_and_what_was_compiled_is_kept(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make("textworld", **STUDIO)
    with monkeypatch.context() as patch:
        patch.setenv("INFORM_HOME", str(tmp_path))
        with pytest.raises(ConfigError, match="does not compile a game"):
            env.reset("take key", 0)
        assert list(cache.iterdir()) == []
    start = env.reset("take key", 0)
    monkeypatch.setenv("INFORM_HOME", str(tmp_path))
    assert make("textworld", **STUDIO).reset("take key", 0) == start
    (compiled,) = cache.iterdir()
    assert {file.suffix for file in compiled.iterdir()} == {".json", ".ni", ".z8"}


def test_an_episode_by_hand() -> None:
    env = make("textworld", **STUDIO)
    observation = env.reset("put teacup on mantelpiece", 0)
    first, *_, last = observation.text.split("\n")
    assert (first, last) == ("-= Studio =-", "You are carrying: a teacup.")
    assert observation.actions == ("drop teacup", "go north", "open box", "put teacup on mantelpiece", "take key")
    done = []
    for command in ("go north", "go south", "open box", "close box", "open box", "drop teacup", "take teacup"):
        step = env.step(observation.actions.index(command))
        observation = step.observation
        done.append(step.achieved)
    # The start was in the studio, with the teacup in hand: no goals. What was achieved is not achieved again.
    assert done == [("be in spare room",), (), ("open box",), (), (), (), ()]
    assert "insert teacup into box" in observation.actions
    step = env.step(observation.actions.index("put teacup on mantelpiece"))
    assert (step.achieved, step.reward, step.terminated) == (("put teacup on mantelpiece",), 1.0, True)
    assert step.observation.text.split("\n")[-1] == "You are carrying nothing."


def test_the_goals_of_a_game_by_hand() -> None:
    env = make("textworld", **STUDIO)
    goals = [*env.goals("train"), *env.goals("heldout")]
    things, places = ("cane", "key", "keycard", "shirt", "teacup"), ("in box", "in safe", "on mantelpiece")
    puts = {f"put {thing} {place}" for thing, place in product(things, places)} - {"put cane in safe"}
    takes = {f"take {thing}" for thing in things[:-1]}
    assert set(goals) == {"be in spare room", "open box", "open safe", *takes, *puts}
    assert Counter(map(env.goal_type, goals)) == {"go": 1, "open": 2, "take": 4, "put": 14}
    heldout = env.goals("heldout")
    assert 0 < len(heldout) < 7
    assert set(heldout) <= puts


def test_an_episode_takes_place_where_its_goal_is_possible(check_contract: Callable[..., None]) -> None:
    env = TextWorld(games=2, first_seed=1, objects=8, max_steps=12)
    rng = Random(0)
    for goal in rng.sample([*env.goals("train"), *env.goals("heldout")], 6):
        check_contract(env, goal, rng.randrange(99), [rng.randrange(60) for _ in range(12)])
    (entry,) = (entry for entry in describe() if entry.name == "textworld")
    assert entry.goals.keys() == {"go", "open", "put", "take"}


def holds(goal: str, facts: set[tuple[str, ...]]) -> bool:
    """Whether one of the engine's facts is what the goal asks for."""
    if match := re.fullmatch(r"take (.+)", goal):
        return ("in", match[1], "I") in facts
    if match := re.fullmatch(r"put (.+) (in|on) (.+)", goal):
        return (match[2], match[1], match[3]) in facts
    if match := re.fullmatch(r"be in (.+)", goal):
        return ("at", "P", match[1]) in facts
    return ("open", goal.removeprefix("open ")) in facts


def check_against_the_engine(episodes: int, games: list[dict[str, int]], first_seed: int = 0) -> Counter[str]:
    """Compare `achieved` and texts of random episodes with the second engine's facts; return the types achieved.

    The environment plays compiled games in an interpreter. The library's other engine applies the commands to the facts
    alone.
    """
    envs = [TextWorld(**options) for options in games]
    second = {}
    achieved: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + episodes):
        rng = Random(seed)
        env, options = rng.choice([*zip(envs, games, strict=True)])
        goals = [*env.goals("train"), *env.goals("heldout")]
        goal = rng.choice(goals)
        env.reset(goal, seed)
        assert env._engine is not None
        file = env._engine._path
        assert file is not None
        if file not in second:
            second[file] = textworld.start(str(file.with_suffix(".json")), textworld.EnvInfos(facts=True))
        observation, recorded = env._scene, [_facts(second[file].reset())]
        ended, done = False, set()
        while not ended:
            action = rng.randrange(len(observation.commands))
            step = env.step(action)
            recorded.append(_facts(second[file].step(observation.commands[action])[0]))
            observation = env._scene
            before, after = recorded[-2:]
            expected = {
                each
                for each in goals
                if holds(each, after) and not holds(each, before) and (each in env.goals("train") or each == goal)
            }
            assert set(step.achieved) == expected - done, (seed, options, goal)
            done |= expected
            check_words(step.observation.text, after)
            ended = step.terminated or step.truncated
            achieved.update(map(env.goal_type, step.achieved))
    return achieved


def check_words(text: str, facts: set[tuple[str, ...]]) -> None:
    """The interpreter names the room and what is carried as the facts have it."""
    (room,) = (fact[2] for fact in facts if fact[:2] == ("at", "P"))
    assert text.startswith(f"-= {room} =-".title()) or text.lower().startswith(f"-= {room.lower()} =-")
    carried = text.split("You are carrying")[-1]
    assert all(fact[1] in carried for fact in facts if fact[0] == "in" and fact[2] == "I")


def _facts(state: Any) -> set[tuple[str, ...]]:
    return {(str(fact.name), *(str(variable.name) for variable in fact.arguments)) for fact in state.facts}


def test_achieved_is_what_the_engines_facts_say() -> None:
    achieved = check_against_the_engine(8, [{**STUDIO, "games": 2, "max_steps": 15}])
    assert len(achieved) >= 3, achieved


@pytest.mark.parametrize(
    ("option", "message"),
    [("games", "games from 1 to 1,000"), ("rooms", "rooms from 1 to 20"), ("max_steps", "max_steps from 1 to 9,999")],
)
def test_options_out_of_range_are_refused(option: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"textworld: expected {message}, got 0"):
        make("textworld", **{option: 0})


def test_misuse_is_refused() -> None:
    env = TextWorld(**STUDIO, max_steps=1)
    with pytest.raises(EnvironmentContractError, match="call reset"):
        env.step(0)
    with pytest.raises(ConfigError, match="expected one like 'take key'"):
        env.reset("take keys", 0)
    env.reset("take key", 0)
    with pytest.raises(EnvironmentContractError, match="from 0 to 4, got 5"):
        env.step(5)
    assert env.step(0).truncated
    with pytest.raises(EnvironmentContractError, match="call reset"):
        env.step(0)


def test_without_textworld_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sacglam.envs.textworld.games")
    monkeypatch.setitem(sys.modules, "textworld", None)
    with pytest.raises(ConfigError, match=r"pip install -e '.\[textworld\]'.* gcc"):
        make("textworld").goals("train")
    (entry,) = (entry for entry in describe() if entry.name == "textworld")
    assert (entry.goals, "textworld" in entry.missing) == ({}, True)
