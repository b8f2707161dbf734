"""Partners: what they say, what becomes of an episode, and what they keep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from docs.examples.noisy import Noisy, NoisyConfig
from sacglam import partners
from sacglam.build import build
from sacglam.clock import PhaseClock
from sacglam.config import load, parse
from sacglam.config.kinds import PartnerConfig
from sacglam.errors import ConfigError, UntrustedError
from sacglam.goals import GoalSource
from sacglam.loop import Loop
from sacglam.partners import (
    EnvironmentConfig,
    JudgeConfig,
    LearnedJudge,
    Partner,
    Verdict,
    described,
)
from sacglam.prompt import Prompt, query
from sacglam.replay.windows import window
from sacglam.resolve import resolve
from sacglam.types import Classifiers, Decision, Episode, Example, Observation, Query, Step

STATES = [Observation(f"state {t}", ("left", "right")) for t in range(5)]
NAME = f"{__name__}:SilentConfig"


def episode(*achieved: tuple[str, ...], goal: str = "goal") -> Episode:
    """An episode that ends with success, or else out of time."""
    end = len(achieved) - 1
    steps = tuple(
        Step(STATES[t + 1], float(goal in done), done, goal in done, t == end and goal not in done)
        for t, done in enumerate(achieved)
    )
    return Episode(goal, STATES[0], tuple(Decision(0, 0.0, 0) for _ in steps), steps, seed=3)


SUCCESS = episode((), ("early",), ("late", "goal"))


class SilentConfig(PartnerConfig):
    """A partner of one's own."""

    type: str = NAME

    def build(self, rng: np.random.Generator, clock: PhaseClock, prompt: Prompt, classifiers: Classifiers) -> Partner:
        return Silent(rng, clock)


class Silent(Partner):
    def verdicts(self, episodes: Sequence[Episode]) -> Sequence[Verdict]:
        return [[() for _ in each.steps] for each in episodes]


@dataclass
class ScriptedJudges:
    """A judge's model that knows which goals each transition achieved, by the states before and after."""

    sure: dict[tuple[int, str], float] = field(default_factory=dict)
    taught: list[tuple[list[Example], list[str], int, int]] = field(default_factory=list)
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def predict(self, name: str, queries: Sequence[Query]) -> list[npt.NDArray[np.float32]]:
        self.asked += [query.actions for query in queries]
        return [
            np.array([self.sure.get((int(q.prompt[6]), goal[1:]), 0.1) for goal in q.actions], np.float32)
            for q in queries
        ]

    def fit(self, name: str, *lesson: Any) -> None:
        examples, goals, updates, seed = lesson
        self.taught.append(([*examples], [*goals], updates, seed))


def judge(judges: ScriptedJudges, **settings: Any) -> LearnedJudge:
    return LearnedJudge(np.random.default_rng(0), PhaseClock(), JudgeConfig(**settings), query, judges)


def noisy(seed: int = 0, **rates: float) -> Noisy:
    return Noisy(np.random.default_rng(seed), PhaseClock(), NoisyConfig(**rates))


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ([["goal", "goal", "goal"]], "expected the goals that a step achieved as a tuple of str.*got 'goal'"),
        ([[(), ()]], r"expected goals for each step of each episode, got \[\[\(\), \(\)\]\]"),
        ([], r"each episode, got \[\]"),
        (None, "each episode, got None"),
        ([None], r"each episode, got \[None\]"),
    ],
)
def test_a_partner_that_gives_something_else_is_named(verdicts: Any, said: str) -> None:
    partner = Silent(np.random.default_rng(0), PhaseClock())
    partner.verdicts = lambda episodes: verdicts  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=rf"partner\.type: Silent\.verdicts: .*{said}"):
        partner.describe([SUCCESS])


def test_sources_of_goals_learn_from_the_partner_s_verdicts() -> None:
    settings = ["env.name=bitflip", "env.options={bits: 2}", "env.copies=4", "steps=128", "device=cpu", "threads=1"]
    config = load(None, [*settings, f"partner={NAME}", "goals=progress", "replay.random_steps=96"])
    parts = build(config, print)
    for _ in Loop(config, parts).intervals():
        pass
    [outcomes] = parts.collector.goals.state()["outcomes"].values()
    assert len(outcomes) > 10
    assert not any(outcomes)  # by the environment's verdict a third of them would be successes


def test_the_environment_gives_back_the_very_episodes() -> None:
    assert load(None).partner == EnvironmentConfig()
    partner = EnvironmentConfig().build(np.random.default_rng(0), PhaseClock(), query, ScriptedJudges())
    episodes = (SUCCESS,)
    assert partner.describe(episodes) is episodes
    assert (partner.metrics(), partner.state(), partner.clock.seconds) == ({}, {}, {})


def test_an_episode_keeps_what_the_partner_confirms() -> None:
    assert described(SUCCESS, [(), ("early",), ("late", "goal")]) == SUCCESS


def test_a_missed_success_is_cut_short_and_unrewarded() -> None:
    seen = described(SUCCESS, [(), (), ("late",)])
    own = window(seen, "goal", 0, 5, gamma=0.5)
    assert (own.rewards, own.terminated) == ((0.0, 0.0, 0.0), False)
    assert [step.achieved for step in seen.steps] == [(), (), ("late",)]
    assert (seen.steps[-1].terminated, seen.steps[-1].truncated) == (False, True)


def test_a_claimed_success_is_rewarded_once_and_ends_the_own_goal_alone() -> None:
    timeout = episode((), ("early",), ("late",))
    seen = described(timeout, [("goal",), ("early", "goal"), ("late",)])
    own, other = (window(seen, goal, 0, 5, gamma=0.5) for goal in ("goal", "late"))
    assert (own.rewards, own.terminated) == ((1.0,), True)
    assert (other.rewards, other.terminated) == ((0.0, 0.0, 1.0), True)
    assert [step.achieved for step in seen.steps] == [("goal",), ("early",), ("late",)]


def test_an_episode_for_an_imagined_goal_is_rewarded_and_ended_by_the_partner_alone() -> None:
    played = replace(SUCCESS, goal="imagined")  # the environment ended it with success at "goal", which nobody pursued
    missed = described(played, [(), ("early",), ("late", "goal")])
    own, other = (window(missed, goal, 0, 5, gamma=0.5) for goal in ("imagined", "goal"))
    assert (own.rewards, own.terminated) == ((0.0, 0.0, 0.0), False)
    assert (other.rewards, other.terminated) == ((0.0, 0.0, 1.0), True)
    named = described(played, [(), ("imagined",), ("goal",)])
    own, other = (window(named, goal, 0, 5, gamma=0.5) for goal in ("imagined", "goal"))
    assert (own.rewards, own.terminated, len(own)) == ((0.0, 1.0), True, 2)
    assert (other.rewards, other.terminated) == ((0.0, 0.0, 1.0), True)


def test_a_goal_counts_the_first_time_it_is_named() -> None:
    seen = described(SUCCESS, [("early", "early"), ("early",), ("late", "goal")])
    assert [step.achieved for step in seen.steps] == [("early",), (), ("late", "goal")]


def test_noise_at_rate_0_changes_nothing_and_at_rate_1_everything() -> None:
    assert noisy().describe([SUCCESS]) == [SUCCESS]
    [missed] = noisy(false_negatives=1.0).describe([SUCCESS])
    assert all(step.achieved == () for step in missed.steps)
    partner = noisy(false_positives=1.0)
    partner.describe([episode((), goal="other")])
    [seen] = partner.describe([SUCCESS])
    # Both known goals are false in the first two steps, and a goal is named once.
    assert {*seen.steps[0].achieved} <= {"goal", "other"}
    assert len(seen.steps[0].achieved) == 1


def test_noise_has_its_rates() -> None:
    partner = noisy(false_positives=0.2, false_negatives=0.1)
    partner.known = dict.fromkeys(map(str, range(1000)))
    seen = [step for e in partner.describe([episode(("a",), ("b",), ("c",))] * 1000) for step in e.steps]
    false = [goal for step in seen for goal in step.achieved if goal.isdigit()]
    right = sum(len(step.achieved) for step in seen) - len(false)
    assert len(false) / 3000 == pytest.approx(0.2, abs=0.02)
    assert right / 3000 == pytest.approx(0.9, abs=0.02)
    assert len(set(false)) > 400  # of 600 draws from a thousand
    said = right + len(false)
    expected = {"partner_precision": right / said, "partner_recall": right / 3000}
    assert partner.metrics() == pytest.approx(expected, abs=1e-3)  # an achieved goal is also named at a wrong step
    assert partner.metrics() == {}  # since the last call


def test_a_partner_goes_on_from_its_state() -> None:
    first = noisy(false_positives=0.5, false_negatives=0.5)
    first.describe([SUCCESS, episode((), goal="other")])
    second = noisy(1, false_positives=0.5, false_negatives=0.5)
    second.load_state(json.loads(json.dumps(first.state())))
    assert first.describe([SUCCESS] * 5) == second.describe([SUCCESS] * 5)
    assert first.state() == second.state()
    assert first.metrics() == second.metrics()


def test_a_partner_of_ones_own() -> None:
    config = parse({"partner": {"type": NAME}})
    assert parse(config.model_dump()) == config
    partner = config.partner.build(np.random.default_rng(0), PhaseClock(), query, ScriptedJudges())
    [seen] = partner.describe([SUCCESS])
    assert not seen.success
    assert partner.metrics() == {"partner_recall": 0.0}
    with pytest.raises(UntrustedError, match="--trust"):
        parse({"partner": {"type": NAME}}, trusted=False)


def test_a_partner_speaks_too_late_for_ppo() -> None:
    with pytest.raises(ConfigError, match="PPO learns from steps of unfinished episodes, but partner scored judges"):
        parse({"algo": {"type": "ppo"}, "partner": "scored"})
    with pytest.raises(ConfigError, match=r"unknown setting 'partner\.rate'"):
        parse({"partner": {"type": "scored", "rate": 0.1}})


def test_a_judge_listens_until_its_budget_is_spent_and_learns_once() -> None:
    judges = ScriptedJudges()
    partner = judge(judges, budget=5)
    assert partner.describe([SUCCESS]) == [SUCCESS]
    assert judges.taught == []
    other = episode((), ("early",), goal="other")
    assert partner.describe([other]) == [other]
    [(examples, goals, updates, _)] = judges.taught
    assert [(each.achieved, each.earlier) for each in examples] == [
        ((), ()),
        (("early",), ()),
        (("late", "goal"), ("early",)),
        ((), ()),
        (("early",), ()),
    ]
    assert examples[0].transition == "state 0\nAction: left\nstate 1\nGoal:"
    assert (goals, updates) == (["goal", "early", "late", "other"], 5)
    assert partner.metrics() == {}  # so far the environment spoke
    partner.describe([SUCCESS])
    assert len(judges.taught) == 1


def test_a_judge_then_says_what_its_model_is_sure_of() -> None:
    judges = ScriptedJudges({(1, "early"): 0.95, (2, "goal"): 0.91, (2, "late"): 0.89, (0, "other"): 1.0})
    partner = judge(judges, budget=4)
    partner.describe([SUCCESS, episode((), goal="other")])
    [seen] = partner.describe([SUCCESS])
    assert [step.achieved for step in seen.steps] == [("other",), ("early",), ("goal",)]
    assert partner.metrics() == {"partner_precision": 2 / 3, "partner_recall": 2 / 3}
    assert judges.asked == [(" goal", " early", " late", " other")] * 3


def test_a_judge_is_asked_for_a_sample_of_the_known_goals_and_always_for_the_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partners, "CANDIDATES", 3)
    judges = ScriptedJudges()
    partner = judge(judges, budget=1)
    partner.describe([episode((str(number),), goal=str(number)) for number in range(100)])
    partner.describe([episode((), (), goal="7")] * 50)
    assert {len(set(goals)) for goals in judges.asked} == {3}
    assert all(" 7" in goals for goals in judges.asked)
    assert len(set(judges.asked)) > 40


def test_a_judge_is_asked_for_imagined_goals_and_knows_those_it_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partners, "CANDIDATES", 5)
    judges = ScriptedJudges({(0, "Grasp any bug"): 1.0})
    partner = judge(judges, budget=1, imagine=0.5)
    partner.describe([episode((goal,), goal=goal) for goal in ("Grasp red cat", "Grow red cat", "Grow any bug")])
    [seen] = partner.describe([episode((), goal="Grow red cat")])
    assert judges.asked == [(" Grow red cat", " Grasp red cat", " Grow any bug", " Grasp any bug")]
    assert [step.achieved for step in seen.steps] == [("Grasp any bug",)]
    assert "Grasp any bug" in partner.known
    pursuing = JudgeConfig(imagine=0.5, pursue=0.1)
    assert [each.imagines for each in (JudgeConfig(), partner.settings, pursuing)] == ["", "relabelling", "pursuing"]


def test_a_judge_waits_for_something_to_be_achieved() -> None:
    judges = ScriptedJudges()
    partner = judge(judges, budget=2)
    for _ in range(3):
        partner.describe([episode((), ())])
    other = judge(judges, budget=2)
    other.load_state(json.loads(json.dumps(partner.state())))
    assert not judges.taught
    other.describe([SUCCESS])
    [(examples, *_)] = judges.taught
    assert len(examples) == 9
    other.describe([SUCCESS])
    assert len(judges.taught) == 1
    assert judges.asked


def test_a_budget_that_lasts_all_steps_is_noted() -> None:
    config, notes = parse({"steps": 500, "device": "cpu", "partner": {"type": "judge", "budget": 500}}), list[str]()
    resolve(config, notes.append)
    assert notes == ["partner judge: all 500 steps are among the first 500, which the environment judges"]
    resolve(config.model_copy(update={"steps": 501}), notes.append)
    assert len(notes) == 1


def test_goals_are_pursued_once_there_is_a_judge_of_them() -> None:
    partner = judge(ScriptedJudges(), budget=5, imagine=0.5, pursue=1.0)
    source = partner.source(GoalSource(["goal"], np.random.default_rng(0)), str)
    partner.describe([SUCCESS])  # names goals that are no training goals, but two more steps are labelled
    assert {next(source).goal for _ in range(20)} == {"goal"}
    partner.describe([SUCCESS])
    assert {next(source).goal for _ in range(20)} == {"early", "late"}


def test_imagined_goals_are_not_drawn_in_the_environments_proportions() -> None:
    with pytest.raises(ConfigError, match="prior never relabels with goals that a partner imagines"):
        parse({"partner": {"type": "judge", "imagine": 0.5}, "replay": {"hindsight": "prior"}})


def test_a_scored_partner_asks_from_the_first_step_on() -> None:
    judges, config = ScriptedJudges({(1, "goal"): 0.95, (0, "goal"): 0.5}), parse({"partner": "scored"}).partner
    partner = config.build(np.random.default_rng(0), PhaseClock(), query, judges)
    [seen] = partner.describe([episode((), ())])
    assert [step.achieved for step in seen.steps] == [(), ("goal",)]
    assert (seen.steps[1].reward, judges.taught) == (1.0, [])


@pytest.mark.parametrize("labelled", [1, 3])
def test_a_judge_goes_on_from_its_state(labelled: int) -> None:
    first, second = (judge(ScriptedJudges({(0, "goal"): 1.0}), budget=5) for _ in range(2))
    first.describe([SUCCESS] * labelled)
    second.load_state(json.loads(json.dumps(first.state())))
    for partner in (first, second):
        partner.describe([SUCCESS] * 2)
    assert first.state() == second.state()
    taught = [partner.classifiers.taught for partner in (first, second)]
    assert labelled > 1 or taught[0] == taught[1] != []


def test_a_judge_needs_whole_weights() -> None:
    with pytest.raises(ConfigError, match=r"learners\.zero_stage 3 and partner judge exclude each other"):
        parse({"partner": "judge", "learners": {"count": 1, "zero_stage": 3}})
    with pytest.raises(ConfigError, match=r"learners\.zero_stage 3 and goals magellan exclude each other"):
        parse({"goals": "magellan", "learners": {"count": 1, "zero_stage": 3}})
