"""Partners: what they say, what becomes of an episode, and what they keep."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from sacglam.clock import PhaseClock
from sacglam.config import PartnerConfig, load, parse
from sacglam.errors import ConfigError, UntrustedError
from sacglam.partners import EnvironmentConfig, Noisy, NoisyConfig, Partner, Verdict, described
from sacglam.replay.windows import window
from sacglam.types import Decision, Episode, Observation, Step

STATES = [Observation(f"state {t}", ("left", "right")) for t in range(5)]
NAME = f"{__name__}:SilentConfig"


def episode(*achieved: tuple[str, ...], goal: str = "goal", last: Observation | None = None) -> Episode:
    """An episode that ends with success, or else out of time."""
    end = len(achieved) - 1
    after = [*STATES[1 : end + 1], last or STATES[end + 1]]
    steps = tuple(
        Step(state, float(goal in done), done, goal in done, t == end and goal not in done)
        for t, (state, done) in enumerate(zip(after, achieved, strict=True))
    )
    return Episode(goal, STATES[0], tuple(Decision(0, 0.0, 0) for _ in steps), steps, seed=3)


SUCCESS = episode((), ("early",), ("late", "goal"))


class SilentConfig(PartnerConfig):
    """A partner of one's own."""

    type: str = NAME

    def build(self, rng: np.random.Generator, clock: PhaseClock) -> Partner:
        return Silent(rng, clock)


class Silent(Partner):
    def verdicts(self, episodes: Sequence[Episode]) -> Sequence[Verdict]:
        return [[() for _ in each.steps] for each in episodes]


def noisy(seed: int = 0, **rates: float) -> Noisy:
    return Noisy(np.random.default_rng(seed), PhaseClock(), NoisyConfig(**rates))


def test_the_environment_gives_back_the_very_episodes() -> None:
    assert load(None).partner == EnvironmentConfig()
    partner = EnvironmentConfig().build(np.random.default_rng(0), PhaseClock())
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


def test_a_missed_success_in_a_state_without_actions_ends_there() -> None:
    seen = described(episode((), ("goal",), last=Observation("the end", ())), [(), ()])
    own = window(seen, "goal", 0, 5, gamma=0.5)
    assert (own.rewards, own.terminated) == ((0.0, 0.0), True)


def test_a_claimed_success_is_rewarded_once_and_ends_the_own_goal_alone() -> None:
    timeout = episode((), ("early",), ("late",))
    seen = described(timeout, [("goal",), ("early", "goal"), ("late",)])
    own, other = (window(seen, goal, 0, 5, gamma=0.5) for goal in ("goal", "late"))
    assert (own.rewards, own.terminated) == ((1.0,), True)
    assert (other.rewards, other.terminated) == ((0.0, 0.0, 1.0), True)
    assert [step.achieved for step in seen.steps] == [("goal",), ("early",), ("late",)]


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
    partner = config.partner.build(np.random.default_rng(0), PhaseClock())
    [seen] = partner.describe([SUCCESS])
    assert not seen.success
    assert partner.metrics() == {"partner_recall": 0.0}
    with pytest.raises(UntrustedError, match="--trust"):
        parse({"partner": {"type": NAME}}, trusted=False)


def test_a_partner_speaks_too_late_for_ppo() -> None:
    with pytest.raises(ConfigError, match="PPO learns from an episode's steps before its end, when partner noisy"):
        parse({"algo": {"type": "ppo"}, "partner": "noisy"})
    with pytest.raises(ConfigError, match=r"unknown setting 'partner\.rate'"):
        parse({"partner": {"type": "noisy", "rate": 0.1}})
