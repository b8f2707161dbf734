"""Gymnasium environments as text environments, and ours as gymnasium environments."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from gymnasium import make, spaces
from gymnasium.utils.env_checker import check_env as check_gymnasium_env

import sacglam.worlds.gymnasium  # noqa: F401  gives our environments their ids
from sacglam.envs import TextEnv, check_env
from sacglam.envs import make as make_world
from sacglam.errors import ConfigError, EnvironmentContractError
from sacglam.types import Observation, Step
from sacglam.worlds.gymnasium import SacglamEnv
from sacglam.worlds.gymnasium.describers import _as_text

Play = Callable[[TextEnv, str, int, Sequence[int]], tuple[Observation, list[Step]]]
DOCS = Path(__file__).parents[3] / "docs" / "guides" / "gymnasium.md"
LAKE = "gymnasium:FrozenLake-v1"
DRY = {"is_slippery": False}
LEFT, DOWN, RIGHT, UP = range(4)


class Quest:
    """Find the room with the flag, which the seed draws. Its answers have one of several forms."""

    commands = ("go hall", "go attic")

    def __init__(self, form: str = "commands") -> None:
        self.form = form
        self.rng = Random(0)
        self.action_space: Any = spaces.Discrete(2) if form in ("mask", "named") else None

    def reset(self, *, seed: int | None = None) -> Any:
        self.rng = Random(seed)
        self.wanted, self.room = self.rng.choice(["hall", "attic"]), "cellar"
        obs, info = self.answer()
        return obs, info

    def step(self, action: Any) -> Any:
        if self.form in ("mask", "named"):
            action = self.commands[action]
        self.room = action.removeprefix("go ")
        done, reward = self.room == self.wanted, float(self.form == "paid" or self.room == self.wanted)
        return self.answer()[0], reward, done, False, self.answer()[1]

    def answer(self) -> tuple[Any, dict[str, Any]]:
        commands, goal = list(self.commands), f"reach {self.wanted}"
        text = f"room: {self.room}"
        return {
            "commands": ({"text": text, "mission": goal}, {"admissible_commands": commands}),
            "valid": (text, {"goal": goal, "valid": commands, "achieved_goals": [f"reach {self.room}"]}),
            "won": ({"text": text}, {"goal": goal, "possible_actions": commands, "won": self.room == self.wanted}),
            "paid": ({"text": text}, {"goal": goal, "possible_actions": commands, "won": self.room == self.wanted}),
            "mask": (text, {"goal": goal, "action_mask": np.array([self.room != "hall", self.room == "hall"])}),
            "named": ({"observation": text, "goal": goal}, {}),
            "bare": (text, {}),
        }[self.form]


class Board:
    """Five fields, of which the free ones are legal, by number or by name."""

    action_space = spaces.Discrete(5)

    def __init__(self, legal: Sequence[Any]) -> None:
        self.legal = legal

    def reset(self, *, seed: int | None = None) -> Any:
        return "a board", {"possible_actions": self.legal}

    def step(self, action: Any) -> Any:
        return f"took {action}", 1.0, True, False, {"possible_actions": self.legal}


@pytest.mark.parametrize(
    ("legal", "taken"),
    [([1, 3, 4], {"Action 1": 1, "Action 3": 3, "Action 4": 4}), (["look", "look", "go"], {"look": 0, "go": 2})],
)
def test_a_discrete_action_is_the_one_that_its_text_says(legal: Sequence[Any], taken: dict[str, int]) -> None:
    for number, (text, action) in enumerate(taken.items()):
        env = make_world(f"gymnasium:{__name__}:Board", kwargs={"legal": legal})
        [goal] = env.goals("train")
        assert env.reset(goal, 0).actions[number] == text
        assert env.step(number).observation.text == f"took {action}"


class Bits:
    """A GoalEnv: flip bits until they are the desired ones; a reward of -1 until then."""

    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None) -> Any:
        rng = np.random.default_rng(seed)
        self.bits, self.desired = rng.integers(2, size=3), rng.integers(2, size=3)
        return self.answer(), {}

    def step(self, action: int) -> Any:
        self.bits[action] ^= 1
        obs = self.answer()
        return obs, self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {}), False, False, {}

    def answer(self) -> dict[str, Any]:
        return {"observation": self.bits.copy(), "achieved_goal": self.bits.copy(), "desired_goal": self.desired}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> float:
        return float((achieved == desired).all()) - 1


class Near(Bits):
    """All bits but one are enough."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> float:
        return float(abs(achieved - desired).sum() <= 1) - 1


class Unseeded(Quest):
    """Its copies draw the same numbers, one episode after the other, but not those of the seed."""

    def reset(self, *, seed: int | None = None) -> Any:
        return super().reset(seed=self.rng.randrange(2**31))


class Drawn(Unseeded):
    """One of fifty rooms at each reset, whatever the seed."""

    def reset(self, *, seed: int | None = None) -> Any:
        rng = self.rng
        super().reset(seed=seed)
        self.rng, self.wanted = rng, str(rng.randrange(50))
        return self.answer()


def seen(tiles: str, cell: str) -> str:
    return f"You see {tiles}\nYou are at {cell}"


def test_frozen_lake_by_hand(play: Play) -> None:
    env = make_world(LAKE, kwargs=DRY)
    assert env.goals("train") == ["Reach row 4, column 4"]
    start, steps = play(env, "Reach row 4, column 4", 0, [UP, DOWN, LEFT, DOWN, RIGHT, RIGHT, DOWN, RIGHT])
    assert start == Observation(
        seen("the edge left, ice down, ice right, the edge up", "row 1, column 1"),
        ("Go left", "Go down", "Go right", "Go up"),
    )
    cells = ["", "row 2, column 1", "", "row 3, column 1", "row 3, column 2", "row 3, column 3", "row 4, column 3"]
    assert [step.achieved for step in steps] == [
        *((f"Reach {cell}",) if cell else () for cell in cells),
        ("Reach row 4, column 4",),
    ]
    assert steps[1].observation.text == seen("the edge left, ice down, a hole right, ice up", "row 2, column 1")
    assert steps[6].observation.text == seen("ice left, the edge down, the present right, ice up", "row 4, column 3")
    assert [step.reward for step in steps] == [0.0] * 7 + [1.0]
    assert [step.terminated for step in steps] == [False] * 7 + [True]


def test_a_hole_ends_the_episode_and_achieves_nothing(play: Play) -> None:
    _, steps = play(make_world(LAKE, kwargs=DRY), "Reach row 4, column 4", 0, [DOWN, RIGHT])
    assert (steps[-1].terminated, steps[-1].reward, steps[-1].achieved) == (True, 0.0, ())


@pytest.mark.parametrize("slippery", [False, True])
def test_frozen_lake_is_that_of_gymnasium(play: Play, slippery: bool) -> None:
    env, reference = make_world(LAKE, kwargs={"is_slippery": slippery}), make("FrozenLake-v1", is_slippery=slippery)
    rng = Random(slippery)
    for seed in range(50):
        picks = [rng.randrange(4) for _ in range(100)]
        _, steps = play(env, "Reach row 4, column 4", seed, picks)
        reference.reset(seed=seed)
        for pick, step in zip(picks, steps, strict=False):
            cell, reward, terminated, truncated, _ = reference.step(pick)
            assert step.observation.text.endswith(f"You are at row {cell // 4 + 1}, column {cell % 4 + 1}")
            assert (step.reward, step.terminated, step.truncated) == (reward, terminated, truncated)


def test_practice_is_for_every_cell_of_ice(play: Play) -> None:
    env = make_world(LAKE, kwargs=DRY, practice=True)
    assert len(env.goals("train")) == 11
    assert [env.goal_type(f"Reach row {row}, column 4") for row in (1, 4)] == ["practice", "task"]
    assert env.tasks() == ["Reach row 4, column 4"]
    _, steps = play(env, "Reach row 2, column 1", 0, [DOWN])
    assert (steps[-1].reward, steps[-1].terminated) == (1.0, True)


class Closable(Quest):
    """Counts those that are open."""

    open = 0

    def __init__(self) -> None:
        super().__init__()
        Closable.open += 1

    def close(self) -> None:
        Closable.open -= 1


def test_what_is_no_longer_used_is_closed() -> None:
    env = make_world(f"gymnasium:{__name__}:Closable")
    assert Closable.open == 1, "the one that listed the tasks is closed"
    del env
    assert Closable.open == 0


def test_practice_without_goals_for_it_is_the_task() -> None:
    env = make_world(f"gymnasium:{__name__}:Quest", kwargs={"form": "valid"}, practice=True)
    assert {*map(env.goal_type, [*env.goals("train"), "reach cellar"])} == {"task"}


def test_the_step_limit_truncates(play: Play) -> None:
    _, steps = play(make_world(LAKE, kwargs=DRY, max_steps=3), "Reach row 4, column 4", 0, [UP] * 9)
    assert [step.truncated for step in steps] == [False, False, True]


def test_cliff_walking_along_the_edge(play: Play) -> None:
    env = make_world("gymnasium:CliffWalking-v1")
    _, steps = play(env, "Reach row 4, column 12", 0, [0, *[1] * 11, 2])
    assert [step.reward for step in steps] == [0.0] * 12 + [1.0]
    _, steps = play(env, "Reach row 4, column 12", 0, [1])
    assert steps[0].observation.text == "You are at row 4, column 1"
    assert not steps[0].terminated


STANDS = ("row 1, column 1", "row 1, column 5", "row 5, column 1", "row 5, column 4")


def test_taxi_s_goal_is_the_stand_that_its_state_names(play: Play) -> None:
    env, taxi = make_world("gymnasium:Taxi-v4"), make("Taxi-v4")
    assert len(env.goals("train")) == 4
    for seed in range(30):
        obs, _ = taxi.reset(seed=seed)
        row, column, passenger, destination = taxi.unwrapped.decode(obs)  # type: ignore[attr-defined]
        start, _ = play(env, f"Bring the passenger to {STANDS[destination]}", seed, [])
        assert start.text == (
            f"The taxi is at row {row + 1}, column {column + 1}. The passenger is at {STANDS[passenger]}"
        )
        assert "Drop off" not in start.actions


def test_own_rewards_are_those_of_gymnasium() -> None:
    names = ("Go south", "Go north", "Go east", "Go west", "Pick up", "Drop off")
    env, taxi, rng = make_world("gymnasium:Taxi-v4").rewarding(own_rewards=True), make("Taxi-v4"), Random(0)
    obs, _ = taxi.reset(seed=0)
    stand = STANDS[taxi.unwrapped.decode(obs)[3]]  # type: ignore[attr-defined]
    seen = env.reset(f"Bring the passenger to {stand}", 0)
    for _ in range(150):
        action = rng.randrange(len(seen.actions))
        step = env.step(action)
        assert step.reward == taxi.step(names.index(seen.actions[action]))[1]
        seen = step.observation


def test_every_episode_is_of_the_goal_asked_for(play: Play) -> None:
    env = make_world(f"gymnasium:{__name__}:Quest")
    for seed in range(20):
        _, [step] = play(env, "reach attic", seed, [1])
        assert step.reward == 1.0


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("commands", {}),
        ("valid", {}),
        ("won", {}),
        ("paid", {}),
        ("mask", {"actions": ["go hall", "go attic"]}),
        ("named", {"actions": ["go hall", "go attic"]}),
        ("bare", {"actions": "environment.commands", "goal": "reach it"}),
    ],
)
def test_answers_of_many_forms_are_understood(
    form: str, options: dict[str, Any], play: Play, check_contract: Callable[..., None]
) -> None:
    env = make_world(f"gymnasium:{__name__}:Quest", kwargs={"form": form}, **options)
    goals = env.goals("train")
    assert sorted(goals) == (["reach it"] if form == "bare" else ["reach attic", "reach hall"])
    for seed in range(10):
        assert env.reset(goals[0], seed).text == "room: cellar"
        check_contract(env, goals[0], seed, [seed, 0, 1])
        _, steps = play(env, goals[0], seed, [0, 0 if form == "mask" else 1])  # both rooms
        assert steps[-1].reward == 1.0


def test_what_is_guessed_or_missing_is_stated() -> None:
    def said(name: str, **options: Any) -> str:
        return " ".join(check_env(lambda: make_world(name, **options)).notes)

    quest = said(f"gymnasium:{__name__}:Quest")
    assert "text from obs.text (guessed); goal from obs.mission (guessed); actions from info.admissible_comm" in quest
    assert "a positive reward at the end (guessed)" in quest
    assert "hindsight has nothing to relabel" in quest
    assert "set the option max_steps" in quest
    lake = said(LAKE)
    assert "text, goal, actions, achieved from FrozenLake" in lake
    assert "guessed" not in lake
    assert "set the option" not in lake
    assert said("bitflip") == ""


def test_a_goal_env_achieves_what_its_reward_says(play: Play) -> None:
    env = make_world(f"gymnasium:{__name__}:Bits", max_steps=3)
    assert len(env.goals("train")) == 8
    for seed in range(20):
        _, steps = play(env, "1 0 1", seed, [0, 1, 2])  # no state comes twice
        assert [step.achieved for step in steps] == [(step.observation.text.removeprefix("State: "),) for step in steps]
        assert [step.reward for step in steps] == [float(step.achieved == ("1 0 1",)) for step in steps]


def test_whole_numbers_are_written_in_full() -> None:
    assert _as_text(12_344) == "12344"
    assert _as_text(np.array([0.123456, -3.0])) == "0.1235 -3"
    assert _as_text([True, False]) == "1 0"


def test_a_goal_env_s_threshold_counts() -> None:
    env = make_world(f"gymnasium:{__name__}:Near")
    for seed in range(20):
        env.reset("1 1 1", seed)
        step = env.step(0)
        assert (step.reward == 1.0) == (step.observation.text.count("1") >= 2)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (LAKE, {"texts": "obs"}, "did you mean 'text'"),
        ("gymnasium:FrozenLake-v7", {}, "It provides versioned environments"),
        ("gymnasium:no_such_module:Lake-v0", {}, "No module named 'no_such_module'"),
        (LAKE, {"kwargs": {"slippery": True}}, "unexpected keyword argument 'slippery'"),
        (LAKE, {"text": "obs"}, "the option text has no effect: FrozenLake overrides it"),
        (LAKE, {"actions": ["left", "right"]}, r"a list of 4 names of actions, got \['left', 'right'\]"),
        (LAKE, {"actions": "left"}, "a list of 4 names of actions, got 'left'"),
        (LAKE, {"resets": 0}, "expected resets of at least 1, got 0"),
        (LAKE, {"max_steps": 0}, "expected max_steps of at least 1, got 0"),
        (LAKE, {"describer": "json:loads"}, "a subclass of Describer"),
        (LAKE, {"describer": "no_such_module:Lake"}, "No module named 'no_such_module'"),
        ("gymnasium:CartPole-v1", {}, "no text at obs, obs.text, .*: obs is an array of float32"),
        ("gymnasium:Pendulum-v1", {"text": "obs"}, "no actions at info.admissible_commands, info.valid"),
        (
            "gymnasium:Blackjack-v1",
            {"achieved": "info.facts"},
            "no achieved at info.facts: obs is a tuple, info a mapp",
        ),
        ("gymnasium:Blackjack-v1", {"text": "observation"}, "no text at observation: obs is a tuple"),
        ("gymnasium:Blackjack-v1", {"success": "won"}, "expected reward, terminated, never or info.KEY; got 'won'"),
        ("gymnasium:Blackjack-v1", {"text": "environment.__class__"}, "no text at environment.__class__"),
    ],
)
def test_what_cannot_be_made_or_put_into_words_is_named(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_world(name, **options)


def test_a_reward_for_every_step_is_no_sign_of_success() -> None:
    with pytest.raises(ConfigError, match="success cannot be guessed from the reward at the end"):
        check_env(lambda: make_world("gymnasium:CartPole-v1", text="obs"))
    assert check_env(lambda: make_world("gymnasium:CartPole-v1", text="obs", success="terminated")).successes == 8
    never = check_env(
        lambda: make_world("gymnasium:CartPole-v1", text="obs", success="never").rewarding(own_rewards=True)
    )
    assert never.successes == 0
    said = " ".join(never.findings)
    assert "Return of a random episode: " in said
    assert f" to {never.longest}." in said  # 1 a step
    assert "indsight" not in said


def test_a_goal_that_is_not_there_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="not a goal of gymnasium:FrozenLake-v1; expected one like 'Reach row 4, column 4'"
    ):
        make_world(LAKE).reset("Reach row 9, column 9", 0)


def test_an_environment_that_ignores_its_seed_is_found_at_the_start() -> None:
    check_env(lambda: make_world(LAKE))
    with pytest.raises(EnvironmentContractError, match=r"does not repeat itself.*set env.repeats to false"):
        check_env(lambda: make_world(f"gymnasium:{__name__}:Unseeded", goal="reach it"))
    check_env(lambda: make_world(f"gymnasium:{__name__}:Unseeded", goal="reach it"), repeats=False)


def test_every_goal_can_be_had_even_where_seeds_decide_nothing() -> None:
    env = make_world(f"gymnasium:{__name__}:Drawn", kwargs={"form": "valid"})
    for number in range(200):
        for goal in env.goals("train"):
            env.reset(goal, number)


def test_without_gymnasium_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("sacglam.worlds.gymnasium")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ConfigError, match=r"needs gymnasium: pip install 'sacglam\[gymnasium\]'"):
        make_world(LAKE)


@pytest.mark.parametrize("id", ["Playground-v0", "PlaygroundSimple-v0", "Bitflip-v0", "Babyai-v0"])
@pytest.mark.filterwarnings("error")
def test_ours_pass_gymnasium_s_check(id: str) -> None:
    check_gymnasium_env(make(id).unwrapped)


def test_an_episode_through_the_wrapper_is_the_direct_one() -> None:
    env, direct = make("Playground-v0", max_steps=20), make_world("playground", max_steps=20)
    rng = Random(0)
    for episode in range(30):
        obs, info = env.reset(seed=episode)
        seen, over = direct.reset(info["goal"], info["seed"]), False
        while not over:
            assert obs == {"text": seen.text, "goal": info["goal"]}
            assert tuple(info["admissible_commands"]) == seen.actions
            assert info["action_mask"].tolist() == [1] * len(seen.actions)
            action = rng.randrange(len(seen.actions))
            step = direct.step(action)
            obs, reward, terminated, truncated, info = env.step(action)
            assert (reward, terminated, truncated) == (step.reward, step.terminated, step.truncated)
            assert tuple(info["achieved_goals"]) == step.achieved
            seen, over = step.observation, terminated or truncated
        again, _ = env.reset(options={"goal": info["goal"], "seed": info["seed"]})
        assert again["text"] == direct.reset(info["goal"], info["seed"]).text


def test_an_action_beyond_the_list_does_nothing() -> None:
    env = make("Bitflip-v0", bits=3, max_actions=5)
    before, info = env.reset(seed=1)
    assert info["action_mask"].tolist() == [1, 1, 1, 0, 0]
    for _ in range(9):
        after, reward, terminated, truncated, info = env.step(4)
        assert (after, reward, terminated, truncated, info["achieved_goals"]) == (before, 0.0, False, False, [])


def test_the_wrapper_gives_an_environment_s_own_rewards() -> None:
    env = SacglamEnv("gymnasium:CliffWalking-v1", max_steps=20)
    env.reset(seed=0)
    assert env.step(0)[1] == -1


def test_the_wrapped_environment_need_not_repeat_itself() -> None:
    env = SacglamEnv(f"gymnasium:{__name__}:Unseeded", goal="reach it")
    assert isinstance(env.action_space, spaces.Discrete)
    assert env.reset(seed=0)[1]["goal"] == "reach it"


def test_what_the_wrapper_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="a state with 8 actions; pass max_actions"):
        make("Bitflip-v0", max_actions=2).reset()
    with pytest.raises(ConfigError, match=r"expected the options goal and seed, got \['gaol'\]"):
        make("Bitflip-v0").reset(options={"gaol": "A B"})
    with pytest.raises(ConfigError, match="no held-out goals"):
        make("Bitflip-v0", split="heldout")


def test_ours_taken_back_in_are_the_same(play: Play) -> None:
    back, direct = make_world("gymnasium:Bitflip-v0", kwargs={"bits": 2}), make_world("bitflip", bits=2)
    assert sorted(back.goals("train")) == sorted(direct.goals("train"))
    for seed in range(20):
        start, steps = play(back, "A B", seed, [0, 1])
        by_text = {direct.reset("A B", s): s for s in range(20)}
        assert play(direct, "A B", by_text[start], [0, 1]) == (start, steps)


@pytest.mark.parametrize("first", ["gymnasium", "sacglam.envs"])
def test_the_ids_are_there_whatever_is_imported_first(first: str) -> None:
    program = f"import {first}, gymnasium\n"
    program += "print(gymnasium.make('sacglam.worlds.gymnasium:Playground-v0', size='simple').action_space)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "Discrete(4)\n"


def test_the_tutorial_s_describer_is_the_shipped_one(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = python_blocks()
    assert len([line for line in blocks[0].splitlines() if line.strip()]) <= 15
    (tmp_path / "lake.py").write_text(blocks[0])
    monkeypatch.syspath_prepend(tmp_path)
    for kwargs in (DRY, {}):
        shipped, lake = make_world(LAKE, kwargs=kwargs), make_world(LAKE, kwargs=kwargs, describer="lake:Lake")
        [goal] = lake.goals("train")
        assert [goal] == shipped.goals("train")
        for seed in range(30):
            picks = [Random(seed * 100 + t).randrange(4) for t in range(50)]
            start, steps = play(lake, goal, seed, picks)
            reference = play(shipped, goal, seed, picks)
            assert (start, [step.observation for step in steps]) == (
                reference[0],
                [s.observation for s in reference[1]],
            )
            assert [step.achieved for step in steps[:-1]] == [step.achieved for step in reference[1][:-1]]


def test_the_documented_wrapper_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(python_blocks()[-1], str(DOCS), "exec"), {})
    assert capsys.readouterr().out.startswith("Grasp any cat\nYou see: ")


def test_the_documented_worlds_compile() -> None:
    for block in python_blocks():
        compile(block, str(DOCS), "exec")


def python_blocks() -> list[str]:
    return [block.split("```")[0] for block in DOCS.read_text().split("```python\n")[1:]]
