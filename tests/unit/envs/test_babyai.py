"""BabyAI-Text: its words by hand, and what a step achieved against the library's own verifiers."""

from __future__ import annotations

import re
import sys
from collections import Counter, deque
from collections.abc import Callable
from copy import deepcopy
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacglam.envs import make
from sacglam.errors import ConfigError
from sacglam.worlds.babyai import BabyAI

pytest.importorskip("minigrid", reason="needs the extra babyai")

from minigrid.core.actions import Actions
from minigrid.core.constants import COLOR_NAMES
from minigrid.core.world_object import Ball, Box, Door, Key
from minigrid.envs.babyai.core import verifier

from sacglam.worlds.babyai.env import ACTIONS
from sacglam.worlds.babyai.goals import TASKS, family
from sacglam.worlds.babyai.level import Level

SMALL = BabyAI(room_size=6, num_distractors=2, max_steps=40)
LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE = range(6)


def test_goals_and_those_held_out_are_glams() -> None:
    env = make("babyai")
    counts = {split: Counter(map(env.goal_type, env.goals(split))) for split in ("train", "heldout")}  # type: ignore[arg-type]
    # 18 objects, 3 of them held out; 306 pairs, 15 * 14 of them without these; 6 doors and any, 2 held out.
    assert counts["train"] == {
        "go_to": 15,
        "pick_up": 15,
        "put_next": 210,
        "open": 5,
        "pick_up_then_go_to": 210,
        "go_to_after_pick_up": 210,
    }
    assert counts["heldout"] == {
        "go_to": 3,
        "pick_up": 3,
        "put_next": 96,
        "open": 2,
        "pick_up_then_go_to": 96,
        "go_to_after_pick_up": 96,
        "pick_up_then_pick_up": 306,
        "pick_up_after_pick_up": 306,
    }
    assert list(make("babyai", tasks=["go_to"]).goals("heldout")) == [
        "go to the red key",
        "go to the green ball",
        "go to the yellow box",
    ]


def scene(goal: str, *things: tuple[int, int, Any], at: tuple[int, int] = (2, 3), facing: int = 0) -> BabyAI:
    """An episode in a room of 5 by 5 cells, the agent at a cell and facing east (0), south, west or north."""
    env = BabyAI(room_size=7, num_distractors=0)
    env.reset(goal, 0)
    level = env._level
    for x, y in product(range(1, 6), repeat=2):
        level.grid.set(x, y, None)
    for x, y, thing in things:
        level.put_obj(thing, x, y)
    level.agent_pos, level.agent_dir = at, facing
    return env


def play(env: BabyAI, *actions: int) -> list[tuple[str, tuple[str, ...]]]:
    steps = [env.step(action) for action in actions]
    return [(step.observation.text, step.achieved) for step in steps]


def test_the_words_are_glams() -> None:
    env = scene("put the red ball next to the blue key", (4, 3, Ball("red")), (4, 1, Key("blue")), (1, 5, Box("grey")))
    seen = (
        "You see a wall 3 steps left, You see a wall 3 steps right, "
        "You see a blue key 2 steps left and 1 step forward, You see a red ball 1 step forward"
    )
    assert play(env, FORWARD) == [(seen, ("go to the red ball",))]
    assert play(env, PICK_UP)[0][0] == (
        "You carry a red ball, You see a wall 3 steps forward, You see a wall 3 steps left, "
        "You see a wall 3 steps right, You see a blue key 2 steps left and 1 step forward"
    )


def test_doors_are_described_by_their_state() -> None:
    door = Door("purple", is_locked=True)
    env = scene("open the purple door", (6, 3, door), (4, 3, Key("purple")), at=(3, 3))
    key, shut, opened, closed = play(env, PICK_UP, FORWARD, FORWARD, TOGGLE)[0:4]
    assert "locked purple door 3 steps forward" in key[0]
    assert "a locked purple door 1 step forward" in shut[0] or "a locked purple door 2 steps forward" in shut[0]
    assert "locked purple door 1 step forward" in opened[0]
    assert "You see an open purple door 1 step forward" in closed[0]
    assert closed[1] == ("open the purple door", "open the door")


def test_achievements_by_hand() -> None:
    things = (4, 3, Ball("red")), (2, 2, Key("blue")), (2, 1, Ball("red"))
    env = scene("open the door", *things)
    said = [achieved for _, achieved in play(env, FORWARD, PICK_UP, LEFT, LEFT, FORWARD, RIGHT)]
    assert said == [
        ("go to the red ball",),
        ("pick up the red ball",),
        (),
        (),
        (),
        # Carrying the ball, the agent comes to face the key.
        (
            "go to the blue key",
            "pick up the red ball, then go to the blue key",
            "go to the blue key after you pick up the red ball",
        ),
    ]
    # Dropped at (2, 3) from (1, 3), the ball is south of the key. Facing it again is nothing new.
    assert [achieved for _, achieved in play(env, LEFT, FORWARD, LEFT, LEFT, DROP)][-1] == (
        "put the red ball next to the blue key",
    )


def test_a_goal_is_held_out_of_what_is_described_unless_it_is_the_episodes_own() -> None:
    things = (4, 3, Box("yellow")), (1, 1, Key("blue"))
    assert play(scene("go to the blue key", *things), FORWARD)[0][1] == ()
    own = scene("pick up the yellow box", *things)
    assert [achieved for _, achieved in play(own, FORWARD, PICK_UP)] == [(), ("pick up the yellow box",)]
    twice = scene("pick up the blue key, then pick up the grey box", (3, 3, Key("blue")), (2, 2, Box("grey")))
    said = [achieved for _, achieved in play(twice, PICK_UP, RIGHT, DROP, LEFT, LEFT, PICK_UP)]
    assert said[-1][-1] == "pick up the blue key, then pick up the grey box"
    assert "pick up the grey box after you pick up the blue key" not in said[-1]


@given(
    st.sampled_from([*SMALL.goals("train"), *SMALL.goals("heldout")]),
    st.integers(0, 2**32),
    st.lists(st.integers(0, 5), max_size=45),
)
@settings(deadline=None, max_examples=40)
def test_the_contract_holds(check_contract: Callable[..., None], goal: str, seed: int, picks: list[int]) -> None:
    check_contract(SMALL, goal, seed, picks)


@pytest.mark.parametrize("tasks", TASKS)
def test_a_scene_makes_its_goal_possible_and_the_bot_achieves_it(tasks: str) -> None:
    env = BabyAI(tasks=[tasks], room_size=6, num_distractors=3)
    rng = Random(0)
    for goal in rng.sample([*env.goals("train"), *env.goals("heldout")], 5):
        env.reset(goal, rng.randrange(1000))
        level, steps = deepcopy(env._level), env.optimal_length()
        assert steps is not None
        assert 0 < steps < level.max_steps
        objects = Counter((cell.type, cell.color) for cell in level.grid.grid if cell and cell.type != "wall")
        doors = tasks == "open"
        assert sum(objects.values()) == 3 + (2 if doors else len(re.findall("key|ball|box", goal)))
        for type_, colour in re.findall(r"(\w+) (key|ball|box|door)", goal):
            assert colour != "the" or doors
            assert type_ == "the" or objects[colour, type_]


@pytest.mark.parametrize("tasks", TASKS)
def test_the_expert_achieves_the_goal_and_recovers_from_mistakes(tasks: str) -> None:
    env, rng = BabyAI(tasks=[tasks], room_size=6, num_distractors=3), Random(1)
    for number, goal in enumerate(rng.sample(list(env.goals("train")), 4)):
        env.reset(goal, number)
        for t in range(60):
            action = env.expert()
            assert action is not None
            turned = number % 2 and t in (2, 5)  # as noise would; the bot sees the change
            if (step := env.step(ACTIONS.index("turn left") if turned else action)).terminated:
                break
        assert step.reward == 1


def shortest(level: Level, x: int, y: int) -> int:
    """Fewest steps until the agent faces the object at (x, y), when nothing is moved."""
    start = (*map(int, level.agent_pos), level.agent_dir)
    ahead = ((1, 0), (0, 1), (-1, 0), (0, -1))
    queue, known = deque([(start, 0)]), {start}
    while True:
        (i, j, facing), length = queue.popleft()
        front = i + ahead[facing][0], j + ahead[facing][1]
        if front == (x, y):
            return length
        moved = (*front, facing) if level.grid.get(*front) is None else (i, j, facing)
        for state in (moved, (i, j, (facing + 1) % 4), (i, j, (facing - 1) % 4)):
            if state not in known:
                known.add(state)
                queue.append((state, length + 1))


def test_the_bot_is_never_better_than_the_shortest_way() -> None:
    env = BabyAI(tasks=["go_to"], room_size=7, num_distractors=4)
    lengths = []
    for seed in range(40):
        goal = Random(seed).choice(env.goals("train"))
        env.reset(goal, seed)
        level = env._level
        colour, type_ = goal.split()[-2:]
        fewest = min(
            shortest(level, x, y)
            for x, y in product(range(level.width), range(level.height))
            if (cell := level.grid.get(x, y)) is not None and (cell.color, cell.type) == (colour, type_)
        )
        lengths.append((fewest, env.optimal_length()))
    assert all(bot is not None and fewest <= bot for fewest, bot in lengths)
    assert sum(bot or 0 for _, bot in lengths) < 1.6 * sum(fewest for fewest, _ in lengths)


def library_instruction(goal: str, descriptions: dict[str, Any]) -> Any:
    """The library's verifier of a mission, from its text."""
    if match := re.fullmatch(r"(.+), then (.+)", goal):
        return verifier.BeforeInstr(*(library_instruction(part, descriptions) for part in match.groups()))
    if match := re.fullmatch(r"(.+) after you (.+)", goal):
        return verifier.AfterInstr(*(library_instruction(part, descriptions) for part in match.groups()))
    makers = {"go to": "GoToInstr", "pick up": "PickupInstr", "open": "OpenInstr", "put": "PutNextInstr"}
    verb = next(verb for verb in makers if goal.startswith(f"{verb} the "))
    nouns = goal.removeprefix(f"{verb} the ").split(" next to the ")
    return getattr(verifier, makers[verb])(*(descriptions[noun] for noun in nouns))


class LibraryVerifiers:
    """What the library's verifiers say of a copy of an episode, which the library's own `step` plays.

    The verifier of every mission about objects of the scene is run at every step. The library brings the positions of
    objects up to date after a drop only; here they are after every step, since what has been picked up has also moved.
    """

    def __init__(self, level: Level) -> None:
        self.level = deepcopy(level)
        named = {f"{cell.color} {cell.type}" for cell in level.grid.grid if cell is not None} | {"door"}
        made = {f"{c} {t}": verifier.ObjDesc(t, c) for c, t in product(COLOR_NAMES, verifier.OBJ_TYPES)}
        self.descriptions = {name: made.get(name) or verifier.ObjDesc("door") for name in named if "wall" not in name}
        self.verifiers = {
            goal.text: library_instruction(goal.text, self.descriptions)
            for goal in family(tuple(TASKS)).values()
            if all(f"{thing.colour} {thing.type}".strip() in named for thing in goal.things)
        }
        for instruction in self.verifiers.values():
            instruction.reset_verifier(self.level)
        self.done: set[str] = set()

    def step(self, action: int) -> tuple[str, set[str]]:
        text = self.level.step(Actions(action))[0]
        for description in self.descriptions.values():
            description.find_matching_objs(self.level, use_location=False)
        succeeded = {said for said, each in self.verifiers.items() if each.verify(Actions(action)) == "success"}
        new = succeeded - self.done
        self.done |= new
        return text, new


def check_against_the_library(episodes: int, first_seed: int = 0) -> Counter[str]:
    """Compare `achieved` with the library's verifiers in random episodes; return what was achieved, by type."""
    achieved: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + episodes):
        rng = Random(seed)
        tasks = rng.choice([*TASKS, tuple(TASKS)])
        env = BabyAI(
            tasks=tasks, room_size=rng.choice([5, 6]), num_distractors=rng.randrange(3), max_steps=rng.randrange(10, 60)
        )
        known = family((tasks,) if isinstance(tasks, str) else tasks)
        goal = rng.choice([*env.goals("train"), *env.goals("heldout")])
        text, ended = env.reset(goal, seed).text, False
        library = LibraryVerifiers(env._level)
        while not ended:
            near = "1 step forward" in re.sub(r"and 1 step forward|wall 1 step forward", "", text)
            action = rng.choice([PICK_UP, TOGGLE, DROP] if near and rng.random() < 0.5 else range(6))
            step = env.step(action)
            text, new = library.step(action)
            expected = {said for said in new if said in known and (not known[said].heldout or said == goal)}
            assert set(step.achieved) == expected, (seed, goal, action)
            assert step.observation.text == text
            ended = step.terminated or step.truncated
            achieved.update(known[said].type for said in step.achieved)
    return achieved


def test_achieved_is_what_the_librarys_verifiers_find() -> None:
    achieved = check_against_the_library(60)
    assert len(achieved) >= 6, achieved


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": []}, "expected tasks among go_to, pick_up, put_next, open, sequence"),
        ({"tasks": ["goto"]}, "expected tasks among"),
        ({"room_size": 4}, "room_size from 5 to 25, got 4"),
        ({"room_size": 6, "num_distractors": 5}, r"num_distractors \(in rooms of size 6\) from 0 to 4, got 5"),
        ({"max_steps": 0}, "at least 1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make("babyai", **options)


def test_what_is_no_goal_is_refused() -> None:
    env = BabyAI(tasks="go_to")
    with pytest.raises(ConfigError, match=r"expected one like 'go to the \w+ ball'"):
        env.reset("go to a blue ball", 0)
    with pytest.raises(ConfigError, match="not a goal of babyai with these tasks"):
        env.reset("pick up the blue ball", 0)


def test_without_minigrid_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("", ".env", ".level"):
        monkeypatch.delitem(sys.modules, f"sacglam.worlds.babyai{module}")
    monkeypatch.setitem(sys.modules, "minigrid.core.actions", None)
    with pytest.raises(ConfigError, match=r"babyai needs minigrid.*: pip install 'sacglam\[babyai\]'"):
        make("babyai")
