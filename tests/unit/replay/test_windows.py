"""Episodes as n-step transitions: hand-worked episodes, and properties of random ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacglam.replay.windows import hindsight_goals, last_step, window
from sacglam.types import Decision, Episode, Observation, Rewards, Step, Window

GAMMA = 0.5
S = [Observation(f"state {t}", ("left", "right")) for t in range(5)]


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


@pytest.mark.parametrize(
    ("episode", "goal", "last", "reward", "terminated"),
    [
        (SUCCESS, "goal", 3, 1.0, True),
        (SUCCESS, "early", 1, 1.0, True),
        (SUCCESS, "late", 3, 1.0, True),
        (TIMEOUT, "goal", 3, 0.0, False),  # out of time: no reward, and the end is no termination
        (TIMEOUT, "early", 1, 1.0, True),
        (TIMEOUT, "late", 3, 1.0, True),
    ],
)
@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_an_episode_by_hand(
    episode: Episode, goal: str, last: int, reward: float, terminated: bool, length: int
) -> None:
    assert last_step(episode, goal) == last
    for start in range(last + 1):
        stop = min(start + length, last + 1)  # one past the window's last step
        ends = stop == last + 1
        assert window(episode, goal, start, length, GAMMA) == Window(
            goal=goal,
            observations=tuple(S[start : stop + 1]),
            actions=tuple(t % 2 for t in range(start, stop)),
            rewards=(0.0,) * (stop - start - ends) + (reward,) * ends,
            terminated=terminated and ends,
            source="real" if goal == "goal" else "hindsight",
            return_after=0.0 if ends else reward * GAMMA ** (last - stop),
        )


def test_the_real_goal_keeps_the_environments_rewards() -> None:
    episode = _episode([(), (), ()], [1.0, 2.0, 8.0], terminated=False)
    assert window(episode, "goal", 0, 3, GAMMA).rewards == (1.0, 2.0, 8.0)
    # 2 + 0.5 * 8
    assert window(episode, "goal", 0, 1, GAMMA).return_after == 6.0


def test_own_rewards_on_the_way_and_that_of_success_for_another_goal() -> None:
    costly = _episode([(), ("early",), ("late",), ()], [-1.0, -2.0, -4.0, -8.0], terminated=False)
    relabelled = window(costly, "late", 0, 2, GAMMA, rewards=Rewards(own=True, success=20.0))
    assert (relabelled.rewards, relabelled.return_after, relabelled.terminated) == ((-1.0, -2.0), 20.0, False)
    real = window(costly, "goal", 0, 2, GAMMA, rewards=Rewards(own=True, success=20.0))
    assert real.rewards == (-1.0, -2.0)
    # What would have followed may cost anything, so no step looks good for its nearness to the cut.
    assert real.return_after < -1e6
    with pytest.raises(ValueError, match="unknown how the environment would have rewarded it"):
        window(costly, "late", 0, 2, GAMMA, rewards=Rewards(own=True, success=None))
    to_the_cut = window(costly, "goal", 2, 2, GAMMA, rewards=Rewards(own=True))
    assert to_the_cut.return_after < -1e6
    assert not to_the_cut.terminated


def test_a_goal_that_was_not_achieved_is_refused() -> None:
    with pytest.raises(ValueError, match="'never'"):
        window(SUCCESS, "never", 0, 3, GAMMA)


def test_hindsight_goals_by_the_step_that_achieved_them() -> None:
    episode = _episode([("a",), (), ("b", "goal", "c"), ("goal",)], [0.0] * 4, terminated=False)
    assert [hindsight_goals(episode, t) for t in range(4)] == [["a"], [], ["b", "c"], []]


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


def all_hindsight_goals(episode: Episode) -> list[str]:
    return [goal for t in range(len(episode.steps)) for goal in hindsight_goals(episode, t)]


LENGTHS = st.integers(1, 6)
GAMMAS = st.sampled_from([1.0, 0.99, 0.9, 0.5])


@settings(deadline=None, max_examples=60)
@given(episodes(), LENGTHS, GAMMAS)
def test_windows_of_any_length_are_cut_from_the_same_episode(episode: Episode, length: int, gamma: float) -> None:
    for goal in [episode.goal, *all_hindsight_goals(episode)]:
        whole = window(episode, goal, 0, len(episode.steps), gamma)
        assert len(whole) == last_step(episode, goal) + 1
        for start in range(len(whole)):
            part = window(episode, goal, start, length, gamma)
            stop = start + len(part)
            assert len(part) == min(length, len(whole) - start)
            assert part.observations == whole.observations[start : stop + 1]
            assert part.actions == whole.actions[start:stop]
            assert part.rewards == whole.rewards[start:stop]
            assert part.terminated == (whole.terminated and stop == len(whole))
            after = sum(gamma ** (t - stop) * whole.rewards[t] for t in range(stop, len(whole)))
            assert part.return_after == pytest.approx(after)


@settings(deadline=None, max_examples=60)
@given(episodes())
def test_a_hindsight_goal_is_rewarded_once_where_it_was_achieved(episode: Episode) -> None:
    for goal in all_hindsight_goals(episode):
        whole = window(episode, goal, 0, len(episode.steps), 0.9)
        assert goal in episode.steps[len(whole) - 1].achieved
        assert whole.rewards == (0.0,) * (len(whole) - 1) + (1.0,)
        assert (whole.terminated, whole.source) == (True, "hindsight")
