"""The contract of an environment: what is accepted, what is refused, and that everything shipped keeps it."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count, cycle
from pathlib import Path
from threading import Event, Thread, get_ident
from typing import Any

import numpy as np
import pytest

from sacglam.envs import CheckedEnv, calls, check_env, make
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


def test_own_rewards_are_any_finite_numbers_and_take_the_place_of_the_goal_s() -> None:
    env = CheckedEnv(World((replace(NOTHING, reward=-7.5), replace(WON, own_reward=20), replace(WON))), "world")
    env.rewarding(own_rewards=True).reset("win", 0)
    assert [env.step(0).reward, env.step(0).reward] == [-7.5, 20.0]
    with pytest.raises(EnvironmentContractError, match=r"set env\.reward to environment"):
        play(World((replace(NOTHING, reward=-7.5),)))
    endless = CheckedEnv(World((replace(NOTHING, reward=math.inf),)), "world").rewarding(own_rewards=True)
    endless.reset("win", 0)
    with pytest.raises(EnvironmentContractError, match="expected a finite reward, got inf"):
        endless.step(0)
    going_on = CheckedEnv(World((replace(WON, terminated=False),)), "world").rewarding(own_rewards=True)
    going_on.reset("win", 0)
    with pytest.raises(EnvironmentContractError, match="the step that achieves the episode's goal to terminate it"):
        going_on.step(0)


def test_a_factory_may_return_what_make_returns() -> None:
    env = CheckedEnv(CheckedEnv(World((replace(WON, own_reward=20),)), "inner"), "outer").rewarding(own_rewards=True)
    env.reset("win", 0)
    assert env.step(0).reward == 20


class Closable(World):
    """Counts those that are open."""

    open = 0

    def __init__(self) -> None:
        super().__init__(train=("win",))
        Closable.open += 1

    def close(self) -> None:
        Closable.open -= 1


def test_an_environment_that_is_no_longer_used_is_closed_once() -> None:
    env = CheckedEnv(CheckedEnv(Closable(), "inner"), "outer")  # of which only the inner one is dropped
    assert Closable.open == 1
    env.close()
    env.close()
    assert Closable.open == 0
    del env
    check_env(Closable)
    assert Closable.open == 0


def test_harmless_forms_are_converted() -> None:
    [step] = play(World((replace(WON, achieved=["win"], observation=Observation("end", ["Go"])),)))  # type: ignore[arg-type]
    assert step.achieved == ("win",)
    assert step.observation.actions == ("Go",)
    assert CheckedEnv(World(train=(goal for goal in ("a", "b"))), "world").goals("train") == ["a", "b"]


def test_numbers_of_numpy_become_python_s() -> None:
    end = Step(Observation(np.str_("end"), (np.str_("Go"),)), np.float32(1), ["win"], np.bool_(True), 0)  # type: ignore[arg-type]
    [step] = play(World((end,), train=np.array(["win", "lose"])))
    assert step == Step(Observation("end", ("Go",)), 1.0, ("win",), True, False)
    kinds = {
        type(each) for each in (step.reward, step.terminated, step.truncated, step.observation.text, *step.achieved)
    }
    assert kinds == {float, bool, str}
    [step] = play(World((replace(WON, reward=np.ones(1)),)))  # type: ignore[arg-type]
    assert type(step.reward) is float


def test_a_list_that_the_environment_changes_later_is_not_ours() -> None:
    train, actions = ["win", "lose"], ["Go"]
    env = CheckedEnv(World(first=Observation("here", actions), train=train), "world")  # type: ignore[arg-type]
    goals, first = env.goals("train"), env.reset("win", 0)
    train.clear(), actions.append("Stay")
    assert goals == ["win", "lose"]
    assert first.actions == ("Go",)


@dataclass
class Planner(World):
    """Says how far it is, and which of its goals evaluation is about."""

    distance: Any = None
    about: Any = ("win",)

    def optimal_length(self) -> Any:
        return self.distance

    def tasks(self) -> Any:
        return self.about


@pytest.mark.parametrize(("distance", "found"), [(np.int64(3), 3), (3.0, 3), (0, 0), (None, None)])
def test_lengths_are_ints(distance: Any, found: int | None) -> None:
    env = CheckedEnv(Planner(distance=distance), "world")
    env.reset("win", 0)
    assert type(env.optimal_length()) is type(found)
    assert env.optimal_length() == found


@pytest.mark.parametrize("distance", [-1, 0.5, math.inf, math.nan, "3", True, np.arange(2)])
def test_other_lengths_are_refused(distance: Any) -> None:
    env = CheckedEnv(Planner(distance=distance), "world")
    env.reset("win", 0)
    with pytest.raises(EnvironmentContractError, match=r"'world', optimal_length\(\), goal 'win', seed 0: expected"):
        env.optimal_length()


@pytest.mark.parametrize(("action", "said"), [("Go", "an action as a number, got 'Go'"), (2, "an action below 2")])
def test_an_expert_names_an_action_by_its_index(action: Any, said: str) -> None:
    class Expert(World):
        def expert(self) -> Any:
            return action

    env = CheckedEnv(Expert(), "world")
    env.reset("win", 0)
    with pytest.raises(EnvironmentContractError, match=rf"expert\(\).*: expected {said}"):
        env.expert()


def test_once_an_episode_is_over_no_expert_is_asked() -> None:
    class Expert(World):
        def expert(self) -> int:
            next(self.given)  # there is no further answer
            return 1

    env = CheckedEnv(Expert((WON,)), "world")
    env.reset("win", 0)
    env.step(0)
    assert env.expert() is None


def test_tasks_are_training_goals() -> None:
    assert CheckedEnv(Planner(about=(goal for goal in ["win"])), "world").tasks() == ["win"]
    for about in ((), ("draw",), "win"):
        with pytest.raises(EnvironmentContractError, match=r"environment 'world', tasks\(\): expected"):
            CheckedEnv(Planner(about=about), "world").tasks()


@dataclass
class Raising(World):
    """Raises `error` in one method."""

    error: type[BaseException] = SystemExit
    method: str = "step"

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "method"):
            return self.fail
        return object.__getattribute__(self, name)

    def fail(self, *given: Any) -> Any:
        raise self.error("for \ud800")


def use_all(env: CheckedEnv) -> None:
    env.goals("train"), env.goal_type("win"), env.reset("win", 3), env.optimal_length(), env.tasks(), env.notes()
    env.step(1)


@pytest.mark.parametrize("error", [SystemExit, ZeroDivisionError, GeneratorExit, MemoryError])
@pytest.mark.parametrize(
    ("method", "where"),
    [
        ("goals", r"goals\('train'\)"),
        ("goal_type", r"goal_type\('win'\)"),
        ("reset", r"reset\('win', 3\)"),
        ("step", r"step\(1\) after 0 steps, goal 'win', seed 3"),
        ("optimal_length", r"optimal_length\(\), goal 'win', seed 3"),
        ("tasks", r"tasks\(\)"),
        ("notes", r"notes\(\)"),
    ],
)
def test_what_the_environment_raises_names_it(error: type[BaseException], method: str, where: str) -> None:
    env = CheckedEnv(Raising(error=error, method=method), "world")
    with pytest.raises(EnvironmentContractError, match=f"environment 'world', {where}: it raised") as caught:
        use_all(env)
    assert isinstance(caught.value.__cause__, error)
    said = str(caught.value)
    assert "raise self.error" in said, "its author sees where"
    assert "in _call" not in said, "its own frames alone"
    assert said.encode(), "it can be printed"


@pytest.mark.parametrize("program", ["import sys; sys.exit(0)", "1 / 0", "raise KeyError('x')", "a b"])
@pytest.mark.parametrize("place", ["import", "constructor"])
def test_what_a_module_or_a_constructor_raises_names_it(
    place: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = program if place == "import" else f"class Env:\n    def __init__(self):\n        exec({program!r})"
    (tmp_path / "broken_env.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_env", raising=False)
    error, said = (
        (ConfigError, ": its module raised")
        if place == "import"
        else (EnvironmentContractError, ", its constructor.*: it raised")
    )
    with pytest.raises(error, match=f"environment 'broken_env:Env'{said}"):
        make("broken_env:Env")


class Delegating(World):
    """Looks up what it lacks in a dict, which does not raise what Python expects."""

    def __getattr__(self, name: str) -> Any:
        found: dict[str, Any] = {}
        return found[name]


def test_an_attribute_whose_look_up_raises_is_named() -> None:
    with pytest.raises(EnvironmentContractError, match="'world', its attribute close: it raised KeyError"):
        CheckedEnv(Delegating(), "world")


@pytest.mark.parametrize("kind", ["", "overall"])
def test_a_type_is_not_that_of_all_goals(kind: str) -> None:
    class Typed(World):
        def goal_type(self, goal: str) -> str:
            return kind

    with pytest.raises(EnvironmentContractError, match=f"goal_type.*other than '' and 'overall'.*got '{kind}'"):
        CheckedEnv(Typed(), "world").goal_type("win")


def test_ctrl_c_in_an_environment_is_no_fault_of_its() -> None:
    with pytest.raises(KeyboardInterrupt):
        CheckedEnv(Raising(error=KeyboardInterrupt, method="goals"), "world").goals("train")


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
        (World(first=Observation("here", {"Go", "Stay"})), "its actions as a tuple of str, in a fixed order"),  # type: ignore[arg-type]
        (World(first=Observation("here", "Go")), "its actions as a tuple of str, in a fixed order; got 'Go'"),  # type: ignore[arg-type]
        (World(first=Observation("here", ("Go", 7))), "each of its actions as a str, got 7"),  # type: ignore[arg-type]
        (World(first=Observation("here", ("Go \ud800",))), r"lone surrogate at 3 of 'Go \\ud800'"),
        (World(first=Observation("here \udfff", ("Go",))), "the observation's text as valid Unicode"),
        (World(first=Observation(None, ("Go",))), "the observation's text as a str, got None"),  # type: ignore[arg-type]
        (World((replace(WON, achieved={"win"}),)), "achieved as a tuple of str, in a fixed order; got {'win'}"),  # type: ignore[arg-type]
        (World((replace(WON, achieved=("win", "\ud800")),)), "each of achieved as valid Unicode"),
        (World((replace(NOTHING, achieved=None),)), "achieved as a tuple of str"),  # type: ignore[arg-type]
        (World((replace(NOTHING, reward=np.zeros(2)),)), "the reward as a number, got array"),  # type: ignore[arg-type]
        (World((replace(NOTHING, reward="0"),)), "the reward as a number, got '0'"),  # type: ignore[arg-type]
        (World((replace(NOTHING, reward=10**400),)), "reward 0 without"),
        (World((replace(NOTHING, truncated=None),)), "truncated as a number, got None"),  # type: ignore[arg-type]
        (World((replace(NOTHING, terminated=2),)), "terminated as True or False, got 2"),  # type: ignore[arg-type]
        (World(train="win"), "goals as a tuple of str, in a fixed order; got 'win'"),
        (World(train=("win", 7)), "each of goals as a str, got 7"),
        (World(train=("win", "\ud800")), "each of goals as valid Unicode"),
        (World(train=cycle(["win"])), "goals as at most 1,000,000 texts"),
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


@dataclass
class Heldout(World):
    """Has a goal to evaluate on that is not as it should be."""

    heldout: Any = ("\ud800",)

    def goals(self, split: str) -> Any:
        return self.train if split == "train" else self.heldout


@pytest.mark.parametrize(
    "world", [Heldout(), Planner(distance=-1), Planner(about=("draw",)), Raising(method="optimal_length")]
)
def test_what_a_run_would_meet_at_its_end_is_found_before(world: World) -> None:
    with pytest.raises(EnvironmentContractError, match="environment 'world', "):
        check_env(lambda: CheckedEnv(world, "world"), repeats=False)


def test_a_class_is_checked_as_it_is() -> None:
    assert check_env(lambda: World(train=("win",)), 3).successes == 3
    with pytest.raises(EnvironmentContractError, match=r"environment 'World', step.* reward 1 with"):
        check_env(lambda: World((replace(WON, reward=0.0),), train=("win",)))


LOST = replace(NOTHING, truncated=True)


@pytest.mark.parametrize(
    ("answers", "others", "said"),
    [
        (
            (NOTHING, LOST),
            0,
            "No goal at all was achieved in 4 random episodes of at most 50 steps: there is no",
        ),
        ((replace(NOTHING, achieved=("lose",)), LOST), 1, "No episode achieved its own goal .*, while 1 other goals"),
        ((NOTHING, WON), 0, "Hindsight has nothing to relabel: no step achieved any goal but its episode's own"),
        ((replace(NOTHING, achieved=("lose",)), WON), 1, None),
    ],
)
def test_a_trial_says_what_hindsight_has_to_work_with(answers: tuple[Step, ...], others: int, said: str | None) -> None:
    trial = check_env(lambda: CheckedEnv(World(answers, train=("win",)), "world"), 4)
    assert trial.others_achieved == others
    found = " ".join(trial.findings)
    assert re.search(said, found) if said else "indsight" not in found


def test_goals_of_a_type_without_training_goals_are_not_listed() -> None:
    class Typed(World):
        def goal_type(self, goal: str) -> str:
            return goal

    with pytest.raises(EnvironmentContractError, match=r"types \(win\), got 'lose' of type 'lose'"):
        check_env(lambda: Typed((LISTS_LOSE, WON), train=("win",)))


LISTS_LOSE = replace(NOTHING, achieved=("lose",))


@dataclass
class Evaluated(World):
    """Has `lose` to evaluate on, which `pays` when it is achieved in its own episodes, as it should."""

    train: Any = ("win",)
    answers: tuple[Any, ...] = (LISTS_LOSE, WON)
    pays: bool = True

    def goals(self, split: str) -> Any:
        return self.train if split == "train" else ("lose",)

    def reset(self, goal: str, seed: int) -> Any:
        self.goal = goal
        return super().reset(goal, seed)

    def step(self, action: int) -> Any:
        step = super().step(action)
        won = self.pays and self.goal in step.achieved
        return replace(step, reward=1.0, terminated=True) if won else step


def test_episodes_of_held_out_goals_are_checked_too() -> None:
    with pytest.raises(EnvironmentContractError, match="reward 1 with the episode's goal in achieved, got 0"):
        check_env(lambda: CheckedEnv(Evaluated(pays=False), "world"), repeats=False)


def test_a_trial_says_which_goals_are_trained_on_and_held_out_at_once() -> None:
    found = check_env(lambda: CheckedEnv(Evaluated(train=("win", "lose")), "world"), repeats=False).findings
    assert found[-1] == "Goals that are training and held-out goals at once: 1, such as 'lose'."


def test_a_trial_says_which_held_out_goals_are_listed_under_others() -> None:
    found = check_env(lambda: CheckedEnv(Evaluated(), "world"), repeats=False).findings
    assert found[-1].startswith("Held-out goals listed in achieved under other goals: 1, such as 'lose'.")


def trial_of(*answers: Step, episodes: int = 4, **options: Any) -> Any:
    return check_env(lambda: CheckedEnv(World(answers, **options), "world"), episodes, steps=3)


def test_a_trial_says_how_long_episodes_are() -> None:
    whole, cut = trial_of(NOTHING, LOST), trial_of(NOTHING, NOTHING, NOTHING, LOST)
    assert (whole.longest, whole.steps) == (2, 8)
    assert "Steps of the longest episode: 2." in whole.findings
    assert (cut.longest, cut.steps) == (3, 12)
    assert "Episodes still going after step 3, the limit of this check: 4." in cut.findings


def test_a_trial_says_when_goals_are_first_achieved_and_which_never() -> None:
    lose = replace(NOTHING, achieved=("lose",))
    trial = trial_of(NOTHING, lose, LOST, train=("win", "draw"))
    said = " ".join(trial.findings)
    assert "Episodes that achieved a goal: 4; median step of the first: 2." in said
    assert "Never achieved: 2 of 2 training goals, such as 'win', 'draw'." in said
    nothing = trial_of(NOTHING, LOST, train=("win",))
    assert not any("median step of the first" in line for line in nothing.findings)


def test_a_task_without_success_achieves_nothing_on_purpose() -> None:
    answers = [replace(each, reward=-1.0) for each in (NOTHING, LOST)]
    world = CheckedEnv(World(answers, train=("win",)), "world").rewarding(own_rewards=True)
    said = check_env(lambda: world, 4, repeats=False).findings
    assert "Never achieved: 1 of 1 training goals, such as 'win', as in a task without success." in said


@pytest.mark.parametrize(("rewards", "said"), [((20.0, 20.0), "20"), ((2.0, -0.5), "from -0.5 to 2")])
def test_a_trial_says_what_success_is_paid(rewards: tuple[float, float], said: str) -> None:
    class Paid(World):
        def reset(self, goal: str, seed: int) -> Observation:
            self.answers = (replace(WON, reward=rewards[seed % 2]),)
            return super().reset(goal, seed)

    found = check_env(lambda: CheckedEnv(Paid((WON,), train=("win",)), "world").rewarding(own_rewards=True), 8)
    assert f"Reward of the step that achieves the goal: {said} (compare env.success_reward)." in found.findings


THERE = Observation("there", ("Go",))
THITHER = replace(NOTHING, observation=THERE)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        # Both steps start "here", with one action: each episode repeats it once.
        ((NOTHING, NOTHING, LOST), None),
        (
            (NOTHING, THITHER, LOST),
            "Of 2 actions .* 1 had different consequences: 'Go' in 'here' led to .*'here'.* and to .*'there'",
        ),
        # Achieved already, so that it is not listed again: no difference.
        ((replace(NOTHING, achieved=("lose",)), NOTHING, LOST), None),
        (
            (NOTHING, replace(NOTHING, achieved=("lose",)), LOST),
            "Of 1 actions .* 1 had different consequences: 'Go' in 'here' achieved 'lose' and did not, with",
        ),
    ],
    ids=["alike", "leads-elsewhere", "achieved-before", "achieves"],
)
def test_a_trial_finds_states_that_read_the_same_and_are_not(answers: Any, said: str | None) -> None:
    one = Observation("here", ("Go",))
    steps = [replace(step, observation=one) if step.observation is STATE else step for step in answers]
    found = " ".join(trial_of(*steps, first=one, train=("win",)).findings)
    assert re.search(said, found) if said else "consequences" not in found


PUZZLES = ("hanoi:Hanoi", "lamps:Lamps")


# Hanoi and the lamps do not list a goal that held from the start when it holds again.
@pytest.mark.parametrize("name", ["playground_simple", "bitflip", *(f"benchmarks.battery.{n}" for n in PUZZLES)])
def test_states_that_show_everything_are_never_alike(name: str) -> None:
    assert "consequences" not in " ".join(check_env(lambda: make(name), episodes=50).findings)


def test_a_trial_follows_the_expert_and_says_what_it_reaches() -> None:
    class Door(World):
        """Opens at `Go`; at `Stay` the episode ends."""

        def step(self, action: int) -> Step:
            return WON if action == 0 else replace(NOTHING, truncated=True)

        def expert(self) -> int | None:
            return self.advice

        advice: int | None = 0

    class Wrong(Door):
        advice = 2

    class Silent(Door):
        advice = None

    follows = check_env(lambda: Door(train=("win",)), 8)
    assert follows.successes < 8
    assert follows.findings[-1] == "The environment's expert succeeded in 8 of 8 episodes."
    own = check_env(lambda: CheckedEnv(Door(train=("win",)), "door").rewarding(True), 8)
    assert own.findings[-1].endswith("8 of 8 episodes, with a return of 1 on average.")
    assert "expert" not in " ".join(check_env(lambda: Silent(train=("win",)), 8).findings)
    with pytest.raises(EnvironmentContractError, match=r"expert\(\).*: expected an action below 2"):
        check_env(lambda: Wrong(train=("win",)), 8)
    assert check_env(lambda: Wrong(train=("win",)), 8, expert=False).episodes == 8


def test_what_is_hidden_is_found() -> None:
    found = check_env(lambda: make("benchmarks.battery.questions:Questions"), episodes=100).findings
    assert "Either chance decides or the text hides something" in " ".join(found)


def test_an_environment_that_does_not_repeat_itself_is_found() -> None:
    numbers = count()

    class Moody(World):
        def reset(self, goal: str, seed: int) -> Any:
            super().reset(goal, seed)
            return Observation(f"state {next(numbers)}", ("Go", "Stay"))

    make_moody: Callable[[], CheckedEnv] = lambda: CheckedEnv(Moody(), "moody")  # noqa: E731
    with pytest.raises(EnvironmentContractError, match="does not repeat itself"):
        check_env(make_moody)


def test_a_call_is_still_watched_after_one_within_it() -> None:
    with (outer := calls.Call(lambda: "outer")):
        with calls.Call(lambda: "inner"):
            assert calls._calls[get_ident()] is not outer
        assert calls._calls[get_ident()] is outer
    assert get_ident() not in calls._calls


def test_each_of_several_slow_calls_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = Event()

    def slow(name: str) -> None:
        with calls.Call(lambda: name):
            done.wait(30)

    monkeypatch.setattr(calls, "PATIENCE_S", 0.1)
    monkeypatch.setattr(calls, "_threads", [])  # a watch that knows of the patience
    both = [Thread(target=slow, args=(name,)) for name in ("first", "second")]
    for thread in both:
        thread.start()
    time.sleep(1)
    done.set()
    for thread in both:
        thread.join()
    said = capsys.readouterr().err
    assert [said.count(f"{name}: it has not returned for 0.1 s") for name in ("first", "second")] == [1, 1]
