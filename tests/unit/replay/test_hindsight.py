"""Episodes as n-step transitions: hand-worked episodes, and properties of random ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacglam.replay.hindsight import hindsight_goals, transitions
from sacglam.types import Decision, Episode, Observation, Step, Transition

GAMMA = 0.5
S = [Observation(f"state {t}", ("left", "right")) for t in range(5)]
# What is expected of one transition: reward_n, discount_n, terminated, index of the next observation.
Row = tuple[float, float, bool, int]


def _episode(achieved: list[tuple[str, ...]], rewards: list[float], *, terminated: bool) -> Episode:
    last = len(rewards) - 1
    return Episode(
        goal="goal",
        start=S[0],
        decisions=tuple(Decision(action=t % 2, log_prob=-0.1 * t, version=10 + t) for t in range(len(rewards))),
        steps=tuple(
            Step(S[t + 1], reward, done, t == last and terminated, t == last and not terminated)
            for t, (reward, done) in enumerate(zip(rewards, achieved, strict=True))
        ),
        seed=3,
    )


# Four steps: step 1 achieves `early`, step 3 achieves `late` and the goal itself.
SUCCESS = _episode([(), ("early",), (), ("late", "goal")], [0.0, 0.0, 0.0, 1.0], terminated=True)
# The same, but out of time: step 3 achieves `late` alone.
TIMEOUT = _episode([(), ("early",), (), ("late",)], [0.0, 0.0, 0.0, 0.0], terminated=False)

# Windows of n steps from t, cut at the end; reward 1 comes at step 3, so it counts gamma^(3 - t) where 3 is inside.
AT_3: dict[int, list[Row]] = {
    1: [(0.0, 0.5, False, 1), (0.0, 0.5, False, 2), (0.0, 0.5, False, 3), (1.0, 0.5, True, 4)],
    # t = 0: steps 0 1 2, 0.5^3. t = 1: steps 1 2 3, 0.5^2 * 1, 0.5^3. t = 2: steps 2 3, 0.5, 0.5^2. t = 3: 1, 0.5.
    3: [(0.0, 0.125, False, 3), (0.25, 0.125, True, 4), (0.5, 0.25, True, 4), (1.0, 0.5, True, 4)],
    # t = 0: steps 0 to 3, all there are: 0.5^3 * 1, 0.5^4.
    5: [(0.125, 0.0625, True, 4), (0.25, 0.125, True, 4), (0.5, 0.25, True, 4), (1.0, 0.5, True, 4)],
}
# The prefix of two steps that ends in `early`.
AT_1: dict[int, list[Row]] = {
    1: [(0.0, 0.5, False, 1), (1.0, 0.5, True, 2)],
    3: [(0.5, 0.25, True, 2), (1.0, 0.5, True, 2)],
    5: [(0.5, 0.25, True, 2), (1.0, 0.5, True, 2)],
}
# Out of time: no reward, and every window bootstraps at its end, also the short ones.
OUT_OF_TIME: dict[int, list[Row]] = {
    n: [(0.0, discount, False, following) for _, discount, _, following in rows] for n, rows in AT_3.items()
}


@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.parametrize(
    ("episode", "goal", "table"),
    [
        (SUCCESS, "goal", AT_3),
        (SUCCESS, "early", AT_1),
        (SUCCESS, "late", AT_3),
        (TIMEOUT, "goal", OUT_OF_TIME),
        (TIMEOUT, "early", AT_1),
        (TIMEOUT, "late", AT_3),
    ],
)
def test_an_episode_by_hand(episode: Episode, goal: str, table: dict[int, list[Row]], n: int) -> None:
    assert transitions(episode, goal, n, GAMMA) == [
        Transition(
            goal=goal,
            observation=S[t],
            action=t % 2,
            reward_n=reward_n,
            discount_n=discount_n,
            terminated=terminated,
            next_observation=S[following],
            source="real" if goal == "goal" else "hindsight",
            version=10 + t,
        )
        for t, (reward_n, discount_n, terminated, following) in enumerate(table[n])
    ]


def test_the_real_goal_keeps_the_environment_s_rewards() -> None:
    # n = 3, gamma = 0.5, rewards (1, -2, 4, 8): 1 - 1 + 1 = 1; -2 + 2 + 2 = 2; 4 + 4 = 8; 8.
    episode = _episode([(), (), (), ()], [1.0, -2.0, 4.0, 8.0], terminated=False)
    assert [t.reward_n for t in transitions(episode, "goal", 3, GAMMA)] == [1.0, 2.0, 8.0, 8.0]


def test_hindsight_goals_are_all_but_the_episode_s_own_in_order() -> None:
    assert hindsight_goals(SUCCESS) == ["early", "late"]
    assert hindsight_goals(TIMEOUT) == ["early", "late"]
    assert hindsight_goals(_episode([("goal",)], [1.0], terminated=True)) == []


def test_a_goal_that_was_not_achieved_is_refused() -> None:
    with pytest.raises(ValueError, match="'never'"):
        transitions(SUCCESS, "never", 3, GAMMA)


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    """Up to eight steps, any rewards, every goal achieved at most once."""
    length = draw(st.integers(1, 8))
    at = draw(st.lists(st.integers(0, length - 1), max_size=5))
    observations = [Observation(f"state {t}", ("a", "b", "c")) for t in range(length + 1)]
    terminated = draw(st.booleans())
    return Episode(
        goal="goal",
        start=observations[0],
        decisions=tuple(Decision(draw(st.integers(0, 2)), -1.0, draw(st.integers(0, 9))) for _ in range(length)),
        steps=tuple(
            Step(
                observation=observations[t + 1],
                reward=draw(st.sampled_from([0.0, 1.0, -0.25, 3.0])),
                achieved=tuple(f"goal {i}" for i, when in enumerate(at) if when == t),
                terminated=terminated and t == length - 1,
                truncated=not terminated and t == length - 1,
            )
            for t in range(length)
        ),
        seed=0,
    )


N = st.integers(1, 6)
GAMMAS = st.sampled_from([1.0, 0.99, 0.9, 0.5])


@settings(deadline=None, max_examples=60)
@given(episodes(), N, GAMMAS)
def test_hindsight_transitions_are_the_prefix_rewarded_at_its_end(episode: Episode, n: int, gamma: float) -> None:
    for goal in hindsight_goals(episode):
        end = next(t for t, step in enumerate(episode.steps) if goal in step.achieved)
        found = transitions(episode, goal, n, gamma)
        assert len(found) == end + 1
        assert sum(t.reward_n for t in transitions(episode, goal, 1, gamma)) == 1.0
        for t, transition in enumerate(found):
            window = min(n, end + 1 - t)
            reaches_end = t + window == end + 1
            assert transition.discount_n == pytest.approx(gamma**window)
            assert transition.terminated == reaches_end
            assert transition.reward_n == pytest.approx(gamma ** (window - 1) if reaches_end else 0.0)
            assert transition.source == "hindsight"


@settings(deadline=None, max_examples=60)
@given(episodes(), N, GAMMAS)
def test_real_transitions_bootstrap_unless_the_environment_terminated(episode: Episode, n: int, gamma: float) -> None:
    found = transitions(episode, episode.goal, n, gamma)
    length = len(episode.steps)
    assert len(found) == length
    for t, transition in enumerate(found):
        window = min(n, length - t)
        assert transition.discount_n == pytest.approx(gamma**window)
        assert transition.terminated == (t + window == length and episode.steps[-1].terminated)
        assert transition.next_observation == episode.observation(t + window)
        assert transition.source == "real"
        assert (transition.action, transition.version) == (episode.decisions[t].action, episode.decisions[t].version)


@settings(deadline=None, max_examples=60)
@given(episodes(), N, GAMMAS)
def test_n_steps_are_the_composition_of_single_steps(episode: Episode, n: int, gamma: float) -> None:
    for goal in [episode.goal, *hindsight_goals(episode)]:
        single = transitions(episode, goal, 1, gamma)
        for t, transition in enumerate(transitions(episode, goal, n, gamma)):
            reward, discount, last = 0.0, 1.0, single[t]
            for last in single[t : t + n]:
                reward += discount * last.reward_n
                discount *= last.discount_n
            assert transition.reward_n == pytest.approx(reward)
            assert transition.discount_n == pytest.approx(discount)
            assert transition.observation == single[t].observation
            assert (transition.next_observation, transition.terminated) == (last.next_observation, last.terminated)
