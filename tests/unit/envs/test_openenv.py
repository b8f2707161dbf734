"""OpenEnv both ways: what is on anyone's server as an environment of ours, and ours on a server and back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pytest
from typing_extensions import override

pytest.importorskip("openenv", reason="needs the extra openenv-server")
import uvicorn
from openenv.core import GenericEnvClient
from openenv.core.env_server import Action, Environment, State, create_app
from openenv.core.env_server import Observation as Answer

from sacglam.envs import CheckedEnv, check_env, make
from sacglam.envs.registry import application
from sacglam.errors import ConfigError, EnvironmentContractError
from sacglam.tools.loopback import guarded, listen
from sacglam.types import Observation, Step
from sacglam.worlds.gymnasium import Describer
from sacglam.worlds.openenv import client as remote
from sacglam.worlds.openenv import server as ours


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """The address of a server of an application, in a thread."""
    with listen(0) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
            remote.about.cache_clear()


@pytest.fixture(scope="module")
def playground() -> Iterator[str]:
    with serving(guarded(application("playground_simple", {}), {})) as url:
        yield url


def play(env: CheckedEnv, goal: str, seed: int) -> tuple[Observation, list[Step]]:
    """A random episode, determined by its seed."""
    rng = Random(seed)
    start, steps = env.reset(goal, seed), list[Step]()
    while not steps or not (steps[-1].terminated or steps[-1].truncated):
        steps.append(env.step(rng.randrange(len((steps[-1].observation if steps else start).actions))))
    return start, steps


# Ours on a server and back.


def test_a_hundred_episodes_are_those_in_this_process(playground: str) -> None:
    here, there = make("playground_simple"), make(f"openenv:{playground}")
    goals = [*here.goals("train"), *here.goals("heldout")]
    for seed in range(100):
        goal = goals[seed * 7 % len(goals)]
        assert play(there, goal, seed) == play(here, goal, seed)


def test_what_else_an_environment_knows_comes_with_it(playground: str) -> None:
    here, there = make("playground_simple"), make(f"openenv:{playground}")
    for split in ("train", "heldout"):
        assert [*there.goals(split)] == [*here.goals(split)]
    assert [*map(there.goal_type, here.goals("heldout"))] == [*map(here.goal_type, here.goals("heldout"))]
    assert [*there.tasks()] == [*here.tasks()]
    goal = here.goals("train")[5]
    for env in (here, there):
        env.reset(goal, 3)
    for _ in range(4):
        assert there.optimal_length() == here.optimal_length()
        assert there.expert() == here.expert()
        assert there.step(0) == here.step(0)
    for env in (here, there):
        with pytest.raises(ConfigError, match=r"'Fly' is not a goal of .*; expected one like"):
            env.goal_type("Fly")


def test_the_type_of_a_goal_outside_all_splits_is_known() -> None:
    with serving(application("bitflip", {"bits": 3})) as url:
        here, there = make("bitflip", bits=3), make(f"openenv:{url}")
        remote.about(url)["goals"]["train"].clear()  # as if these were no training goals
        assert there.goal_type(here.goals("train")[0]) == here.goal_type(here.goals("train")[0])


def test_the_environments_own_rewards_and_tasks_and_notes_come_with_it() -> None:
    options = {"max_steps": 40, "practice": True}
    with serving(application("gymnasium:CliffWalking-v1", options)) as url:
        for own in (False, True):
            here, there = make("gymnasium:CliffWalking-v1", **options), make(f"openenv:{url}")
            starts = [(goal, seed) for seed, goal in enumerate(here.goals("train")[:6])]
            first, second = ([play(env.rewarding(own), *start) for start in starts] for env in (here, there))
            assert first == second
            assert any(step.reward == -100 for _, steps in first for step in steps) == own
        assert [*there.tasks()] == [*here.tasks()] != [*here.goals("train")]
        assert [*there.notes()] == [*here.notes()]


def test_truncation_differs_from_termination() -> None:
    with serving(application("playground_simple", {"max_steps": 2})) as url:
        env = make(f"openenv:{url}")
        env.reset(env.goals("train")[0], 0)
        ends = [env.step(0) for _ in range(2)]
    assert [(step.terminated, step.truncated) for step in ends] == [(False, False), (False, True)]


def test_an_environment_of_ours_takes_no_options_from_afar(playground: str) -> None:
    with pytest.raises(ConfigError, match="has no option 'max_steps'; it accepts: none"):
        make(f"openenv:{playground}", max_steps=3)


def test_the_protocol_as_others_see_it(playground: str) -> None:
    schema = remote._get(playground, "/schema")
    assert schema["action"]["required"] == ["action"]
    assert schema["action"]["properties"]["action"]["type"] == "string"
    env = make("playground_simple")
    with GenericEnvClient(playground).sync() as client:
        for split in ("train", "heldout"):
            first = client.reset(split=split, index=4, seed=1).observation
            assert (first["goal"], first["achieved"]) == (env.goals(split)[4], [])
            assert (first["text"], tuple(first["actions"])) == (
                (seen := env.reset(env.goals(split)[4], 1)).text,
                seen.actions,
            )
        unchanged = client.step({"action": "Fly"})
        assert {**unchanged.observation, "metadata": 0} == {**first, "metadata": 0}
        assert (unchanged.reward, unchanged.done) == (0.0, False)
        assert unchanged.metadata == {"terminated": False, "truncated": False, "unknown_action": "Fly"}
        assert client.state()["step_count"] == 0
        assert client.step({"action": first["actions"][0]}).observation["text"] == env.step(0).observation.text
        assert client.state()["step_count"] == 1
        assert client.reset(seed=7).observation == client.reset(seed=7).observation
        for split in ("test", []):
            with pytest.raises(RuntimeError, match="expected a split of train, heldout, got"):
                client.reset(split=split)
        with pytest.raises(RuntimeError, match="Invalid message"):
            client.step({"move": "Fly"})
    with GenericEnvClient(playground).sync() as client, pytest.raises(RuntimeError, match="expected a reset"):
        client.step({"action": "Grasp"})


def test_the_goals_are_tasks(playground: str) -> None:
    env = make("playground_simple")
    goals = env.goals("heldout")
    assert [split["name"] for split in remote._get(playground, "/playground_simple/splits")] == ["train", "heldout"]
    served = ours.ServedEnvironment("playground_simple", {})
    assert served.num_tasks("heldout") == len(goals)
    assert served.get_task("heldout", 2) == {"index": 2, "goal": goals[2], "type": env.goal_type(goals[2])}
    assert [task["goal"] for task in served.get_task_range("heldout", 1, 3)] == [*goals[1:3]]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/reset", {"goal": "Fly"}, "'Fly' is not a goal"),
        ("/reset", {"goal": 7}, "expected a whole number as the seed and a text as the goal"),
        ("/reset", {"index": 1.0}, "expected an index from 0 to"),
        ("/step", {"action": {"action": "Grasp"}}, "expected a reset before this step"),
        ("/playground_simple/task", {"split": "train", "index": 10**9}, "expected an index from 0 to"),
        ("/playground_simple/num_tasks", {"split": "test"}, "expected a split of train, heldout"),
    ],
)
def test_what_cannot_be_done_gets_the_reason(path: str, body: Any, said: str, playground: str) -> None:
    request = Request(f"{playground}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with pytest.raises(HTTPError) as refused:
        build_opener(ProxyHandler({})).open(request, timeout=60)
    assert refused.value.code == 400
    assert said in json.load(refused.value)["detail"]


def test_other_sites_pages_are_refused(playground: str) -> None:
    client = GenericEnvClient(playground, headers={"Origin": "http://elsewhere.example"}).sync()
    with pytest.raises(ConnectionError, match="403"):
        client.connect()


# Anyone's server.


class Move(Action):
    move: str


class Board(Answer):
    board: str
    legal_moves: list[str]


class Climb(Environment):
    """Climb from step 0 to 3; the seed draws where from. Its moves are texts, as in a game of chess."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    seeded = True

    @override
    def reset(self, seed: int | None = None, episode_id: str | None = None, **parameters: Any) -> Board:
        self.height = Random(seed).randrange(3) if self.seeded else Random().randrange(10**6)
        return self.board(False)

    @override
    def step(self, action: Move, timeout_s: float | None = None, **_: Any) -> Board:
        assert action.move in ("up", "down")
        self.height = max(0, self.height + (1 if action.move == "up" else -1))
        return self.board(self.height == 3)

    def board(self, done: bool) -> Board:
        moves = [] if done else ["up", "down"] if self.height else ["up"]
        return Board(board=f"height {self.height}", legal_moves=moves, done=done, reward=float(done))

    @property
    def state(self) -> State:
        return State()


class Dice(Climb):
    """Its resets take no seed."""

    seeded = False


class Number(Action):
    action_id: int


class Numbered(Answer):
    text: str
    legal_actions: list[int]


class Numbers(Environment):
    """Say 2. Its actions are numbers, as in OpenSpiel's games."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    @override
    def reset(self, seed: int | None = None, start: int = 0, **_: Any) -> Numbered:
        return Numbered(text=f"start {start}", legal_actions=[0, 2])

    @override
    def step(self, action: Number, timeout_s: float | None = None, **_: Any) -> Numbered:
        won = action.action_id == 2
        return Numbered(text="said", legal_actions=[0, 2], done=won, reward=float(won))

    @property
    def state(self) -> State:
        return State()


TEXT: dict[str, Any] = {"text": "obs.board", "max_steps": 9}


class Shouter(Describer):
    @override
    def actions(self, obs: Any, info: Mapping[str, Any]) -> Mapping[str, Any]:
        return {f"shout {move}": {"move": move, "loud": True} for move in obs["legal_moves"]}


climbing = partial(create_app, action_cls=Move, observation_cls=Board, max_concurrent_envs=99)


@pytest.fixture(scope="module")
def climb() -> Iterator[str]:
    with serving(climbing(Climb)) as url:
        yield f"openenv:{url}"


def test_legal_moves_are_guessed_and_the_check_passes(climb: str) -> None:
    trial = check_env(lambda: make(climb, **TEXT), episodes=20)
    assert trial.successes > 0
    assert "actions from obs.legal_moves (guessed)" in trial.notes[0]


def test_numbers_are_named_and_parameters_reach_the_reset() -> None:
    with serving(create_app(Numbers, Number, Numbered, max_concurrent_envs=9)) as url:
        env = make(f"openenv:{url}", kwargs={"start": 5}, max_steps=3)
        seen = env.reset("Solve the task", 0)
        assert (seen.text, seen.actions) == ("start 5", ("Action 0", "Action 2"))
        assert env.step(0).reward == 0
        assert env.step(1).reward == 1
        fixed = make(f"openenv:{url}", actions=[2, 0])
        assert fixed.reset("Solve the task", 0).actions == ("Action 2", "Action 0")
        assert fixed.step(0).reward == 1


def test_a_server_that_ignores_seeds_is_found_out() -> None:
    with serving(climbing(Dice)) as url, pytest.raises(EnvironmentContractError, match=r"set env\.repeats to false"):
        check_env(lambda: make(f"openenv:{url}", **TEXT))


def test_actions_with_several_fields_need_a_describer() -> None:
    class Shout(Move):
        loud: bool

    class Loud(Climb):
        @override
        def step(self, action: Shout, timeout_s: float | None = None, **_: Any) -> Board:
            assert action.loud
            return super().step(action)

    with serving(create_app(Loud, Shout, Board, max_concurrent_envs=9)) as url:
        env = make(f"openenv:{url}", **TEXT)
        env.reset("Solve the task", 0)
        with pytest.raises(ConfigError, match=r"one required field, got \['loud', 'move'\]; write a describer"):
            env.step(0)
        described = make(f"openenv:{url}", **TEXT, describer=f"{__name__}:Shouter")
        described.reset("Solve the task", 0)
        assert "height" in described.step(0).observation.text


def test_a_server_that_is_full() -> None:
    full = pytest.raises(EnvironmentContractError, match=r"CAPACITY_REACHED.*max_concurrent_envs=N")
    with serving(climbing(Climb, max_concurrent_envs=1)) as url, full:
        [make(f"openenv:{url}", **TEXT) for _ in range(2)]
