"""TextWorld: a game by hand, and every step against the library's own tracking of its interpreter."""

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
from sacglam.errors import ConfigError
from sacglam.types import Observation
from sacglam.worlds.textworld import TextWorld, games

textworld = pytest.importorskip("textworld", reason="needs the extra textworld, whose jericho builds with gcc")
pytestmark = pytest.mark.filterwarnings("ignore:Game .* is not fully supported")  # by Jericho alone

STUDIO = {"games": 1, "first_seed": 1, "rooms": 2, "objects": 8}
"""A studio with a box, a mantelpiece and a key, and a teacup in hand; a spare room with a cane in a safe."""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of compiled games, empty at first."""
    home = tmp_path_factory.mktemp("home")
    games.make_game.cache_clear()  # other tests of this process may have made the same games
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HOME", str(home))
        yield home / "sacglam" / "textworld"


def test_what_cannot_be_compiled_is_explained_and_what_was_compiled_is_kept(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make("textworld", **STUDIO)
    with monkeypatch.context() as patch:
        patch.setenv("INFORM_HOME", str(tmp_path))
        with pytest.raises(ConfigError, match="Inform 7 cannot compile the game"):
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


def test_the_expert_takes_a_shortest_way() -> None:
    def left(facts: games.Facts, goal: str) -> int:
        """Fewest commands to `goal`, by trying all."""
        reached, steps = {facts}, 0
        while not any(goal in game.achieved(each) for each in reached):
            reached = {game.after(each, action) for each in reached for action in game.actions(each).values()}
            steps += 1
        return steps

    env = TextWorld(**STUDIO)
    (game,) = {game for places in env._space.values() for game in places}
    for goal, steps in {"put teacup on mantelpiece": 1, "put key in safe": 4, "take cane": 3, "open box": 1}.items():
        env.reset(goal, 0)
        assert left(env._facts, goal) == steps
        for number in range(1, steps + 1):
            action = env.expert()
            assert action is not None
            step = env.step(action)
            assert step.terminated == (number == steps)


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


REQUEST = {"facts": True, "admissible_commands": True, "description": True, "inventory": True}


def check_against_the_library(episodes: int, games: list[dict[str, int]], first_seed: int = 0) -> Counter[str]:
    """Compare texts, commands and `achieved` of random episodes with the library's; return the types achieved.

    It reads the facts from what its interpreter reports; the environment has them from rules.
    """
    envs = [TextWorld(**options) for options in games]
    library = {}
    achieved: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + episodes):
        rng = Random(seed)
        env, options = rng.choice([*zip(envs, games, strict=True)])
        goals = [*env.goals("train"), *env.goals("heldout")]
        goal = rng.choice(goals)
        observation = env.reset(goal, seed)
        file = env._game.compiled()
        if file not in library:
            library[file] = textworld.start(str(file), textworld.EnvInfos(**REQUEST))
        state, ended, done = library[file].reset(), False, set()
        check_scene(observation, state)
        while not ended:
            before, action = _facts(state), rng.randrange(len(observation.actions))
            step = env.step(action)
            state = library[file].step(observation.actions[action])[0]
            observation = step.observation
            check_scene(observation, state)
            expected = {
                each
                for each in goals
                if holds(each, _facts(state))
                and not holds(each, before)
                and (each in env.goals("train") or each == goal)
            }
            assert set(step.achieved) == expected - done, (seed, options, goal)
            done |= expected
            ended = step.terminated or step.truncated
            achieved.update(map(env.goal_type, step.achieved))
    return achieved


def check_scene(observation: Observation, state: Any) -> None:
    """The text is what the library has for the state, and the actions are its commands that do something."""
    lines = f"{state.description}\n{state.inventory}".splitlines()
    assert observation.text == "\n".join(line.strip() for line in lines if line.strip())
    looking = ("examine", "inventory", "look")
    assert list(observation.actions) == [c for c in state.admissible_commands if c.split()[0] not in looking]


def _facts(state: Any) -> set[tuple[str, ...]]:
    return {(str(fact.name), *(str(variable.name) for variable in fact.arguments)) for fact in state.facts}


def test_episodes_are_those_of_the_library() -> None:
    achieved = check_against_the_library(12, [{**STUDIO, "games": 2, "max_steps": 15}])
    assert len(achieved) >= 3, achieved


@pytest.mark.parametrize(
    ("option", "message"),
    [("games", "games from 1 to 1,000"), ("rooms", "rooms from 1 to 20"), ("max_steps", "max_steps of at least 1")],
)
def test_options_out_of_range_are_refused(option: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"textworld: expected {message}, got 0"):
        make("textworld", **{option: 0})


def test_what_is_no_goal_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected one like 'take key'"):
        TextWorld(**STUDIO).reset("take keys", 0)


def test_without_textworld_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("", ".env", ".games"):
        monkeypatch.delitem(sys.modules, f"sacglam.worlds.textworld{module}")
    monkeypatch.setitem(sys.modules, "textworld", None)
    with pytest.raises(ConfigError, match=r"pip install 'sacglam\[textworld\]'.* gcc"):
        make("textworld")
    (entry,) = (entry for entry in describe() if entry.name == "textworld")
    assert (entry.goals, "textworld" in entry.missing) == ({}, True)
