"""The battery: its environments keep the contract, can be solved in their steps, and a table of Q values learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.battery.__main__ import HALVES
from benchmarks.battery.castle import Castle
from benchmarks.battery.models import command
from benchmarks.battery.report import draw, markdown
from benchmarks.battery.search import Search, step_limit
from benchmarks.battery.table import Table, Trace, learn, traces
from benchmarks.battery.thirty import Courier
from benchmarks.battery.workshop import Workshop
from sacglam.config import Config, load
from sacglam.envs import check_env, make
from sacglam.evaluate import evaluate
from sacglam.policy import SamplingPolicy
from sacglam.prompt import query as query_prompt
from sacglam.types import Decision, Episode, Query

CONFIGS = sorted((Path(__file__).resolve().parents[3] / "configs" / "battery").glob("*.yaml"))
NEEDS = {"gymnasium": "gymnasium", "babyai": "minigrid", "textworld": "textworld"}


LARGE = pytest.mark.slow  # its games take seconds to compile


@pytest.fixture(
    params=[pytest.param(f, id=f.stem, marks=LARGE if f.stem == "textworld_house" else ()) for f in CONFIGS]
)
def config(request: pytest.FixtureRequest) -> Config:
    found = load(request.param)
    if package := NEEDS.get(found.env.name.partition(":")[0]):
        pytest.importorskip(package)
    if "minigrid" in found.env.name:
        pytest.importorskip("minigrid")
    return found


def test_environment_keeps_the_contract(config: Config) -> None:
    check_env(lambda: make(config.env.name, **config.env.options), episodes=3)


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_a_configuration_says_what_the_environment_needs_and_no_more(file: Path) -> None:
    values = yaml.safe_load(file.read_text())
    assert values["base"] == "quickstart"
    assert values.keys() <= {"base", "steps", "env", "model", "prompt"}
    assert values["model"].keys() == {"name"}
    assert values["env"].keys() <= {"name", "options"}


@pytest.mark.parametrize(("env", "limit"), [(Castle(), 20), (Workshop(), 15), (Courier(), 10)])
def test_every_goal_can_be_reached_from_every_start(env: Castle | Workshop | Courier, limit: int) -> None:
    for goal in [*env.goals("train"), *env.goals("heldout")][::3]:
        for seed in range(8):
            env.reset(goal, seed)
            length = env.optimal_length()
            assert length is not None
            assert 1 <= length <= limit - 2


# A press of a lamp undoes itself, and all five presses change nothing.
@pytest.mark.parametrize(("name", "longest"), [("hanoi:Hanoi", 7), ("lamps:Lamps", 2)])
def test_no_goal_takes_more_moves(name: str, longest: int) -> None:
    env = make(f"benchmarks.battery.{name}")
    fewest = [Search(env).fewest_steps(goal, seed) for goal in env.goals("train") for seed in range(20)]
    assert max(steps or 99 for steps in fewest) == longest


def play(env: Castle | Workshop | Courier, goal: str, first: str, *actions: str) -> list[str]:
    """The goals that these actions achieve, from the first seed whose episode starts with `first` in its text."""
    seed = next(seed for seed in range(1000) if first in env.reset(goal, seed).text)
    observation, achieved = env.reset(goal, seed), list[str]()
    assert env.optimal_length() == len(actions)
    for action in actions:
        step = env.step(observation.actions.index(action))
        observation = step.observation
        achieved += step.achieved
    assert step.terminated
    assert step.reward == 1.0
    return achieved


def test_a_key_of_the_castle_opens_its_door() -> None:
    ways = [f"Go to the {room}" for room in ("kitchen", "hall", "chapel", "crypt")]
    found = play(Castle(), "Enter the crypt", "stand in the pantry", "Take the red key", *ways)
    assert found == ["Find the red key", "Enter the kitchen", "Enter the hall", "Enter the chapel", "Enter the crypt"]


def test_making_uses_up_the_parts() -> None:
    actions = ("Take flax", "Take wood", "Walk to the bench", "Make pole", "Make rope", "Make ladder")
    found = play(Workshop(), "Make ladder", "at the forest", *actions)
    assert found == ["Take flax", "Take wood", "Make pole", "Make rope", "Make ladder"]


def test_knife_is_four_recipes_deep() -> None:
    env = Workshop()
    seed = next(seed for seed in range(1000) if "at the hills" in env.reset("Make knife", seed).text)
    env.reset("Make knife", seed)
    # ore, stone; forest, wood, flax; forge, charcoal, iron, blade; bench, rope, knife
    assert env.optimal_length() == 12


def test_delivery_leaves_the_parcel_and_a_held_out_one_is_described_in_its_own_episode_alone() -> None:
    goal = "Deliver to the brewery"
    assert goal in Courier().goals("heldout")
    ways = ("Ride to the mill", "Load the parcel", "Ride to the brewery", "Leave the parcel")
    found = play(Courier(), goal, "parcel is at the mill", *ways)
    assert found == ["Visit the mill", "Visit the brewery", goal]
    env = Courier()
    seed = next(s for s in range(1000) if "parcel is at the mill" in env.reset("Visit the zoo", s).text)
    observation = env.reset("Visit the zoo", seed)
    for action in ways:
        step = env.step(observation.actions.index(action))
        observation = step.observation
    assert step.achieved == ()


def test_every_courier_state_has_thirty_actions() -> None:
    env = Courier()
    first = env.reset("Visit the zoo", 0)
    assert {len(first.actions), *(len(env.step(i).observation.actions) for i in range(8))} == {30}


def test_model_is_made_with_the_options_and_the_prompt_of_its_environment(tmp_path: Path) -> None:
    file = tmp_path / "lake.yaml"
    file.write_text(
        "env: {name: babyai, options: {tasks: [go_to], max_steps: 12}}\nmodel: {name: a/b}\nprompt: {history: 1}"
    )
    words = command(load(file), tmp_path / "model")[3:]
    assert words == [
        *("pretrain", str(tmp_path / "model"), "--env", "babyai"),
        *("--set", 'env.options.tasks=["go_to"]', "--set", "env.options.max_steps=12", "--set", "prompt.history=1"),
    ]


STATES = [Query(f"Goal: cellar\n{room}", ("left", "right")) for room in ("hall", "kitchen", "cellar")]


def test_one_sweep_backwards_by_hand() -> None:
    table = Table()
    table.sweep(Trace(STATES, [0, 1], achieves=True))
    assert table.q == {STATES[1]: [0.0, 1.0], STATES[0]: [pytest.approx(0.95), 0.0]}
    table.sweep(Trace([STATES[0], STATES[0], STATES[2]], [1, 1], achieves=False))
    # right of the hall leads to the cellar, whose value is unknown, so 0; then to the hall, worth 0.95
    assert table.q[STATES[0]] == [pytest.approx(0.95), pytest.approx(0.95**2)]
    assert STATES[2] not in table.q


def test_table_takes_the_best_actions_alike_and_any_with_epsilon() -> None:
    query = Query("Goal: cellar\nhall", ("left", "right", "up", "down"))
    table = Table(epsilon=0.2, q={query: [0.5, 0.1, 0.5, 0.0]})
    (log_pi,) = table.log_policy([query])
    assert np.exp(log_pi) == pytest.approx([0.45, 0.05, 0.45, 0.05])
    (unseen,) = table.log_policy([STATES[0]])
    assert np.exp(unseen) == pytest.approx([0.5, 0.5])


def test_an_episode_is_learnt_towards_its_goal_and_up_to_each_that_it_achieved() -> None:
    env = Castle()
    seed = next(s for s in range(1000) if "stand in the pantry" in env.reset("Enter the tower", s).text)
    first = env.reset("Enter the tower", seed)
    steps = [env.step(env_action) for env_action in (1, 0)]  # take the key, go to the kitchen
    episode = Episode("Enter the tower", first, (Decision(1, 0.0, 0), Decision(0, 0.0, 0)), tuple(steps), seed)
    found = {trace.states[0].prompt.splitlines()[0]: trace for trace in traces(episode, query_prompt)}
    assert list(found) == ["Goal: Enter the tower", "Goal: Find the red key", "Goal: Enter the kitchen"]
    assert [(len(t.states), t.actions, t.achieves) for t in found.values()] == [
        (3, [1, 0], False),
        (2, [1], True),
        (3, [1, 0], True),
    ]


@pytest.mark.parametrize("seed", [0, 1])
def test_table_learns_the_castle(seed: int) -> None:
    config = load(CONFIGS[0].with_name("castle.yaml"))
    assert config.steps == 2560
    table = learn(config, seed)
    sampling = SamplingPolicy(np.random.default_rng(0))
    found = evaluate(lambda: make(config.env.name), table, sampling, episodes=200, rng=np.random.default_rng(0))
    assert found.success["overall"] >= 0.85


def test_search_finds_what_the_planner_knows_and_nothing_beyond_the_step_limit() -> None:
    env = make("benchmarks.battery.castle:Castle")
    planned, searched = Search(env), Search(_Planless(Castle()))
    assert step_limit(env) == 20
    for goal in ("Enter the crypt", "Enter the chapel", "Find the blue key"):
        for seed in range(5):
            assert searched.fewest_steps(goal, seed) == planned.fewest_steps(goal, seed) is not None
    house, short = (make("benchmarks.battery.house:House", max_steps=steps) for steps in (8, 2))
    seed = next(s for s in range(1000) if house.reset("Visit the cellar", s).text == "You are in: library")
    assert Search(house).fewest_steps("Visit the cellar", seed) == 3  # hall, kitchen, cellar
    assert Search(short).fewest_steps("Visit the cellar", seed) is None


class _Planless:
    """A castle that does not tell its optimal length."""

    def __init__(self, env: Castle) -> None:
        self.goals, self.reset, self.step, self.goal_type = env.goals, env.reset, env.step, env.goal_type

    def optimal_length(self) -> None:
        return None


def test_report_has_a_row_for_each_environment_and_the_mean_and_the_lowest_seed(tmp_path: Path) -> None:
    base = {"steps": 2560, "random": 0.45, "table": [0.9, 0.94], "optimum": 1.0, "fewest_steps": 4.96}
    rows = [
        {
            "name": "castle",
            "half": "choosing",
            "baselines": base,
            "runs": {"SAC": {"greedy": [0.5, 0.7], "sampled": [0.6]}},
        },
        {"name": "house", "half": "reporting", "baselines": base, "runs": {"SAC": {"greedy": [], "sampled": []}}},
    ]
    assert markdown(rows).splitlines()[2:] == [
        "| `castle` | choosing | 2,560 | 5.0 | 0.45 | 0.92 (0.90) | 1.00 | 0.60 (0.50) | 0.60 (0.60) |",
        "| `house` | reporting | 2,560 | 5.0 | 0.45 | 0.92 (0.90) | 1.00 | - | - |",
    ]
    draw(rows, tmp_path / "battery.png")
    assert (tmp_path / "battery.png").stat().st_size > 10_000


def test_halves_name_each_environment_once() -> None:
    assert sorted(sum(HALVES.values(), ())) == [file.stem for file in CONFIGS]
