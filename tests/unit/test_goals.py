"""Sources of goals: progress by hand, how often goals are drawn, and exact resumption."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from sacglam.config import parse
from sacglam.config.kinds import GoalsConfig
from sacglam.errors import ConfigError, UntrustedError
from sacglam.goals import GoalSource, ProgressConfig, ProgressSource, UniformConfig, halves, learning_progress
from sacglam.magellan import area_under_curve
from sacglam.types import Decision, Episode, Observation, Step

NAME = f"{__name__}:InTurn"
GOALS = ("easy 1", "easy 2", "easy 3", "hard 1", "hard 2", "never 1")
STATE = Observation("here", ("x",))


def kind(goal: str) -> str:
    return goal.split()[0]


def source(by: str = "type", goals: Sequence[str] = GOALS, seed: int = 0) -> ProgressSource:
    found = parse({"goals": {"type": "progress", "by": by}}).goals.build(goals, kind, np.random.default_rng(seed))
    assert isinstance(found, ProgressSource)
    return found


def ended(goal: str, success: bool) -> Episode:
    step = Step(STATE, float(success), (goal,) if success else (), success, not success)
    return Episode(goal, STATE, (Decision(0, 0.0, 0),), (step,), 0)


def outcomes(goal: str, *results: int) -> list[Episode]:
    return [ended(goal, bool(result)) for result in results]


def share(starts: GoalSource, wanted: Callable[[str], bool], draws: int = 4000) -> float:
    return sum(wanted(start.goal) for start in islice(starts, draws)) / draws


def test_uniform_draws_goals_uniformly_and_new_seeds() -> None:
    drawn = list(islice(GoalSource(("a", "b"), np.random.default_rng(0)), 1000))
    assert sum(start.goal == "a" for start in drawn) == pytest.approx(500, abs=64)  # four standard deviations
    assert len({start.seed for start in drawn}) == 1000
    assert drawn == list(islice(GoalSource(("a", "b"), np.random.default_rng(0)), 1000))


def test_uniform_is_the_default_and_draws_as_runs_always_did() -> None:
    assert parse({}).goals == parse({"goals": "uniform"}).goals == UniformConfig()
    starts, rng = parse({}).goals.build(GOALS, kind, np.random.default_rng(3)), np.random.default_rng(3)
    for start in islice(starts, 20):
        assert (start.goal, start.seed) == (GOALS[rng.integers(len(GOALS))], rng.integers(2**31))


@pytest.mark.parametrize(
    ("results", "expected"),
    [((), (0, 0)), ((1,), (0, 0)), ((0, 1), (0, 1)), ((1, 1, 0), (1, 0)), ((1, 0, 0, 1, 1, 1), (1 / 3, 1))],
)
def test_halves_by_hand(results: tuple[int, ...], expected: tuple[float, float]) -> None:
    assert halves(list(map(bool, results))) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ((0, 0, 1, 1), 1.0),
        ((1, 1, 1, 0), math.sqrt(0.5**2 - 0.25 / 2)),
        ((0, 0, 1, 1, 0, 1), 0.0),  # (1/3)^2 is less than (2/9 + 2/9) / 3
        ((1, 1, 1, 1, 0, 0, 0, 1), math.sqrt(0.75**2 - 0.1875 / 4)),  # forgetting counts as well
        ((0,) * 50 + (1,) * 45 + (0,) * 5, math.sqrt(0.9**2 - 0.09 / 50)),
    ],
)
def test_change_by_hand(results: tuple[int, ...], expected: float) -> None:
    assert learning_progress(list(map(bool, results))) == pytest.approx(expected)


@given(st.lists(st.booleans(), max_size=30))
def test_change_is_within_the_difference_and_is_that_of_failures_and_of_time_reversed(outcomes: list[bool]) -> None:
    older, newer = halves(outcomes)
    assert 0 <= learning_progress(outcomes) <= abs(newer - older)
    # squares, since the root of a rounding error may be 1e-8
    assert learning_progress([not outcome for outcome in outcomes]) ** 2 == pytest.approx(
        learning_progress(outcomes) ** 2
    )
    assert learning_progress(outcomes[::-1]) == pytest.approx(learning_progress(outcomes))


@pytest.mark.parametrize("rate", [0.02, 0.5, 0.9])
def test_chance_alone_makes_little_progress(rate: float) -> None:
    played = np.random.default_rng(0).random((2000, 100)) < rate
    apart = [abs(newer - older) for older, newer in map(halves, played.tolist())]
    by_chance = [learning_progress(each) for each in played.tolist()]
    assert np.mean(by_chance) < 0.6 * np.mean(apart)
    assert np.mean(np.array(by_chance) < 0.01) > 0.6  # two thirds of a normal distribution are within one deviation
    learnt = np.random.default_rng(0).random((2000, 50)) < min(1.0, rate + 0.4)
    real = [learning_progress([*old, *new]) for old, new in zip(played[:, :50].tolist(), learnt.tolist(), strict=True)]
    assert np.mean(real) == pytest.approx(min(1.0, rate + 0.4) - rate, rel=0.25)


def test_progress_is_the_change_of_the_last_hundred_outcomes() -> None:
    starts = source()
    starts.observe(outcomes("easy 1", 0, 0) + outcomes("easy 2", 1, 1))
    starts.observe(outcomes("never 1", 0, 0, 0, 0))
    assert starts.metrics() == pytest.approx({"progress/easy": 1.0, "progress/hard": 0.0, "progress/never": 0.0})
    starts.observe(outcomes("easy 3", *[0] * 50, *[1] * 50))
    assert starts.progress(["easy"])[0] == 1.0
    starts.observe(outcomes("easy 3", *[1] * 50))
    assert starts.progress(["easy"])[0] == 0.0


def test_progress_by_goal_is_averaged_over_the_goals_of_a_type() -> None:
    starts = source("goal")
    starts.observe(outcomes("easy 1", 0, 1) + outcomes("hard 2", 0, 0, 1, 0))
    wanted = {"progress/easy": 1 / 3, "progress/hard": math.sqrt(0.125) / 2, "progress/never": 0.0}
    assert starts.metrics() == pytest.approx(wanted)


@pytest.mark.parametrize(("by", "expected"), [("goal", [1000] * 6), ("type", [667] * 3 + [1000] * 2 + [2000])])
def test_groups_are_drawn_uniformly_while_there_is_no_progress(by: str, expected: list[int]) -> None:
    starts = source(by)
    starts.observe(outcomes("never 1", *[0] * 2000))  # epsilon is at its least
    counts = Counter(start.goal for start in islice(starts, 6000))
    assert [counts[goal] for goal in GOALS] == pytest.approx(expected, abs=150)  # four standard deviations


@pytest.mark.parametrize(("by", "own", "uniform"), [("type", 1 / 3, 1 / 9), ("goal", 1.0, 1 / 6)])
def test_four_in_five_goals_are_drawn_by_progress_in_the_end(by: str, own: float, uniform: float) -> None:
    starts = source(by)
    starts.observe(outcomes("never 1", *[0] * 4000) + outcomes("easy 2", 0, 1))
    assert share(starts, lambda goal: goal == "easy 2") == pytest.approx(0.8 * own + 0.2 * uniform, abs=0.03)


def test_the_uniform_share_falls_with_the_episodes() -> None:
    starts = source(goals=["easy 1", "never 1"])
    starts.observe(outcomes("easy 1", *[0] * 160, *[0] * 50, *[1] * 50))
    starts.observe(outcomes("never 1", *[0] * 60))
    assert share(starts, lambda goal: goal == "never 1") == pytest.approx((0.2 + 0.8 / math.e) / 2, abs=0.03)


def test_types_are_drawn_in_proportion_to_their_progress() -> None:
    starts = source()
    starts.observe(outcomes("never 1", *[0] * 4000) + outcomes("easy 1", 0, 1) + outcomes("hard 1", 0, 0, 1, 0))
    hard = math.sqrt(0.125)  # while easy goals make progress of 1
    wanted = 0.8 * hard / (1 + hard) + 0.2 / 3
    assert share(starts, lambda goal: kind(goal) == "hard") == pytest.approx(wanted, abs=0.03)


def test_among_thousands_of_goals_64_are_candidates() -> None:
    goals = [f"many {i}" for i in range(6400)]
    starts = source("goal", goals)
    starts.observe(outcomes(goals[0], *[0] * 4000))
    starts.observe([each for goal in goals[:100] for each in outcomes(goal, 0, 1)])
    found = 1 - (1 - 100 / 6400) ** 64  # at least one of the hundred that progress is among the candidates
    practised = share(starts, lambda goal: int(goal.split()[1]) < 100, 2000)
    assert practised == pytest.approx(0.8 * found, abs=0.06)


def test_a_source_continues_exactly_from_its_state() -> None:
    first, second = source("goal"), source("goal", seed=9)
    rng = np.random.default_rng(0)

    def play(starts: ProgressSource, luck: np.random.Generator) -> list[Any]:
        played = []
        for _ in range(30):
            batch = list(islice(starts, 5))
            starts.observe([ended(start.goal, bool(luck.random() < 0.5)) for start in batch])
            played += batch
        return played

    play(first, rng)
    second.load_state(json.loads(json.dumps(first.state())))
    second.rng.bit_generator.state = first.rng.bit_generator.state
    assert play(first, np.random.default_rng(1)) == play(second, np.random.default_rng(1))
    assert first.metrics() == second.metrics()


class InTurn(GoalsConfig):
    """A source that does not come with sacglam: one goal after another."""

    type: str = NAME
    first: int = 0

    @override
    def build(
        self, goals: Sequence[str], goal_type: Callable[[str], str], rng: np.random.Generator, *model: Any
    ) -> GoalSource:
        class Source(GoalSource):
            turn = self.first

            @override
            def choose(self) -> str:
                self.turn += 1
                return self.goals[(self.turn - 1) % len(self.goals)]

        return Source(goals, rng)


class Unfinished(GoalsConfig):
    """Without `build`."""


def test_a_source_of_ones_own_is_found_by_name() -> None:
    config = parse({"goals": {"type": NAME, "first": 1}})
    assert config.goals == InTurn(first=1)
    assert parse(config.model_dump()) == config
    starts = config.goals.build(("a", "b"), kind, np.random.default_rng(0))
    assert [start.goal for start in islice(starts, 3)] == ["b", "a", "b"]
    with pytest.raises(UntrustedError, match="--trust"):
        parse({"goals": NAME}, trusted=False)
    with pytest.raises(ConfigError, match=rf"goals\.type '{__name__}:Unfinished' lacks a method: build"):
        parse({"goals": f"{__name__}:Unfinished"})


def test_a_source_that_leaves_the_training_goals_is_named() -> None:
    starts = parse({"goals": {"type": NAME, "first": 1}}).goals.build(["a", "b"], kind, np.random.default_rng(0))
    starts.goals, starts.choose = ["a"], lambda: "b"  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=r"goals\.type: Source\.choose\(\) gave 'b', which is not a training goal"):
        next(starts)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("luck", "goals.type: expected one of uniform, progress, magellan, or module:Class"),
        ({"type": "progress", "by": "colour"}, "goals.by: Input should be 'type' or 'goal'"),
        ({"type": "uniform", "by": "goal"}, "goals.by is a setting of goals.type progress"),
    ],
)
def test_settings_that_do_not_exist_are_refused(values: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse({"goals": values})
    assert parse({"goals": "progress"}).goals == ProgressConfig(by="type")


MOSTLY_IMPOSSIBLE = tuple(
    f"{name} {i}" for name, count in {"never": 80, "easy": 16, "hard": 4}.items() for i in range(count)
)


def history(starts: GoalSource, episodes: int, seed: int) -> Iterator[tuple[str, bool]]:
    """Types of goals and outcomes of a learner whose chance of success rises with its practice of a type.

    It is half of the highest after 20 easy and 150 hard goals; one in 200 of the others succeeds, by a wrong verdict.
    The source observes an outcome after it was yielded.
    """
    rng, practice, needed = np.random.default_rng(seed), Counter[str](), {"never": 1, "easy": 20, "hard": 150}
    for start in islice(starts, episodes):
        group = kind(start.goal)
        chance = 0.95 / (1 + math.exp(4 - 4 * practice[group] / needed[group])) if group != "never" else 0.005
        practice[group] += 1
        success = bool(rng.random() < chance)
        yield group, success
        starts.observe([ended(start.goal, success)])


@pytest.mark.parametrize("seed", range(4))
def test_outcomes_of_a_synthetic_history_are_predicted(seed: int) -> None:
    starts = source(goals=MOSTLY_IMPOSSIBLE, seed=seed)
    predicted, impossible = [], []
    for group, success in history(starts, 3000, seed):
        predicted.append((halves(starts.state()["outcomes"].get(group, ()))[1], success))
        impossible.append(starts.progress(["never"])[0])
    assert area_under_curve(predicted) >= 0.9
    assert np.mean(impossible) < 0.02


def test_by_progress_impossible_goals_give_way_to_hard_ones() -> None:
    uniform, progress = Counter[str](), Counter[str]()
    for seed in range(4):
        plain = GoalSource(MOSTLY_IMPOSSIBLE, np.random.default_rng(seed))
        uniform.update(group for group, _ in history(plain, 2000, seed))
        progress.update(group for group, _ in history(source(goals=MOSTLY_IMPOSSIBLE, seed=seed), 2000, seed))
    assert uniform["never"] / 8000 == pytest.approx(0.8, abs=0.03)
    assert progress["never"] / 8000 < 0.4
    assert progress["hard"] > 5 * uniform["hard"]


def test_what_is_mastered_but_not_perfect_does_not_keep_the_practice() -> None:
    late = Counter[str]()
    for seed in range(4):
        played = history(source(goals=MOSTLY_IMPOSSIBLE, seed=seed), 4000, seed)
        late.update(group for group, _ in islice(played, 3500, None))
    assert late["easy"] / 2000 < 0.45  # a third is uniform
