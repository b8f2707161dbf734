"""HindsightReplay: what it stores of an episode, when it gives batches, what it reports, and its state."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sacglam.algos.sac import SacConfig
from sacglam.clock import PhaseClock
from sacglam.collector import collector
from sacglam.config import parse
from sacglam.config.sections import ReplayConfig
from sacglam.errors import ConfigError
from sacglam.replay.buffer import ReplayBuffer
from sacglam.replay.experience import HindsightReplay, OnPolicy
from sacglam.replay.graph import UNTRIED
from sacglam.replay.sampling import Graph, NoHindsight, Uniform, WindowSampler
from sacglam.replay.windows import window
from sacglam.scoring.base import UniformScorer
from sacglam.types import GOAL_REWARDS, Decision, Episode, Observation, Rewards, RolloutBatch, Step, Window


def _episode(version: int = 0) -> Episode:
    """Three steps; the first achieves `a`, the second `b` and `c`, the third nothing: out of time."""
    achieved: list[tuple[str, ...]] = [("a",), ("b", "c"), ()]
    return Episode(
        goal="goal",
        start=Observation("state 0", ("x", "y")),
        decisions=tuple(Decision(t % 2, -0.7, version) for t in range(3)),
        steps=tuple(
            Step(Observation(f"state {t + 1}", ("x", "y")), 0.0, done, False, t == 2) for t, done in enumerate(achieved)
        ),
        seed=1,
    )


def _collected(*episodes: Episode) -> RolloutBatch:
    return RolloutBatch(episodes, ())


def _replay(
    *, hindsight: bool = True, batch: int = 4, batches: int = 2, seed: int = 0, capacity: int = 100
) -> HindsightReplay:
    config = ReplayConfig(capacity=capacity, hindsight=Uniform() if hindsight else NoHindsight())
    return HindsightReplay(
        ReplayBuffer(config, lambda goal: "any", {"any": 1.0}),
        np.random.default_rng(seed),
        WindowSampler(SacConfig(n_step=2, gamma=0.5, batch_size=batch, updates_per_interval=batches)),
    )


def test_an_episode_is_stored_for_its_goal_and_for_each_that_it_achieved() -> None:
    replay = _replay()
    replay.add(_collected(_episode()))
    # 3 for the goal, 1 for `a`, 2 each for `b` and `c`.
    assert len(replay.buffer) == 8
    expected = {(goal, t) for goal, length in {"goal": 3, "a": 1, "b": 2, "c": 2}.items() for t in range(length)}
    drawn = replay.buffer.hindsight.entries(replay.buffer, np.random.default_rng(0), 300)
    assert {(entry.goal, entry.start) for entry in drawn} == expected
    assert replay.buffer.hindsight_share() == pytest.approx(5 / 8)


def test_with_lambda_returns_a_batch_is_as_many_windows_as_hold_its_steps() -> None:
    config = ReplayConfig(capacity=100, hindsight=Uniform())
    sac = SacConfig(n_step=3, td_lambda=0.9, batch_size=8, updates_per_interval=1)
    replay = HindsightReplay(
        ReplayBuffer(config, lambda goal: "any", {"any": 1.0}), np.random.default_rng(0), WindowSampler(sac)
    )
    replay.add(_collected(_episode()))
    for _ in range(20):
        [batch] = replay.batches()
        assert 8 <= sum(map(len, batch)) < 8 + 3  # windows of 3 steps at most
        assert sum(map(len, batch[:-1])) < 8 + 2


def test_without_hindsight_it_is_stored_once() -> None:
    replay = _replay(hindsight=False)
    replay.add(_collected(_episode(), _episode()))
    assert len(replay.buffer) == 6
    assert replay.buffer.hindsight_share() == 0.0


def test_there_are_no_batches_before_there_are_steps_for_one() -> None:
    replay = _replay(batch=9)
    assert list(replay.batches()) == []
    replay.add(_collected(_episode()))  # 8 entries
    assert list(replay.batches()) == []
    replay.add(_collected(_episode()))
    assert [len(batch) for batch in replay.batches()] == [9, 9]


def test_as_many_steps_as_a_batch_has_are_enough_and_so_is_a_full_buffer() -> None:
    for replay in (_replay(batch=8), _replay(batch=9, capacity=7)):
        assert replay.missing().endswith("and ended episodes gave 0 steps")
        replay.add(_collected(_episode()))  # 8 entries
        assert replay.missing() == ""
        assert len(list(replay.batches())) == 2


def test_waiting_draws_no_random_numbers() -> None:
    replay = _replay(batch=9)
    list(replay.batches())
    assert replay.rng.bit_generator.state == np.random.default_rng(0).bit_generator.state


def test_batches_differ_and_are_those_of_the_buffer() -> None:
    replay = _replay()
    replay.add(_collected(_episode()))
    first, second = replay.batches()
    reference = np.random.default_rng(0)
    for batch in (first, second):
        drawn = replay.buffer.hindsight.entries(replay.buffer, reference, 4)
        assert batch == [window(entry.episode, entry.goal, entry.start, 2, 0.5) for entry in drawn]
    assert replay.rng.bit_generator.state == reference.bit_generator.state
    assert second != first


def test_demonstrations_are_known_with_what_the_agent_has_seen() -> None:
    config, any_type = ReplayConfig(hindsight=Graph(share=1.0)), {"any": 1.0}
    ring, buffer = (ReplayBuffer(config, lambda goal: "any", any_type, 0.5) for _ in range(2))
    ring.add(_episode())
    buffer.others = ring.episodes()
    sampler = WindowSampler(SacConfig(gamma=0.5, batch_size=40, updates_per_interval=1))
    replay = HindsightReplay(buffer, np.random.default_rng(0), sampler, ring, imitates=True)
    elsewhere = Step(Observation("state 9", ("x", "y")), 0.0, (), False, True)
    failure = replace(_episode(), decisions=_episode().decisions[:1], steps=(elsewhere,))
    replay.add(_collected(*(replace(failure) for _ in range(40))))
    [batch] = replay.batches()
    assert [w.imitated for w in batch] == [False] * 30 + [True] * 10
    [row] = {w for w in batch[-10:] if (w.observations[0].text, w.goal) == ("state 0", "b")}
    # Of 41 steps from state 0 one led to state 1 and then to `b`; the demonstration alone would say 0.5.
    assert row.known == ((pytest.approx(0.5 / 41), UNTRIED),)
    assert (row.terminated, row.rewards) == (True, (pytest.approx(0.5 / 41),))


def test_demonstrations_that_do_not_fit_are_known_as_long_as_they_are_drawn() -> None:
    config, any_type = ReplayConfig(capacity=100, hindsight=Graph(share=1.0)), {"any": 1.0}
    ring, buffer = (ReplayBuffer(config, lambda goal: "any", any_type, 0.5) for _ in range(2))
    for number in range(35):
        ring.add(replace(_episode(), start=Observation(f"start {number}", ("x", "y"))))
    ring.add(replace(_episode(), decisions=_episode().decisions[:1], steps=_episode().steps[:1]))
    # The last six entries have replaced the first two episodes; the graph was rebuilt after the first one.
    assert len(ring.remembered()) == len(ring.episodes()) + 1 == 35
    buffer.others = ring.remembered()
    sampler = WindowSampler(SacConfig(gamma=0.5, batch_size=400, updates_per_interval=1))
    replay = HindsightReplay(buffer, np.random.default_rng(0), sampler, ring)
    replay.add(_collected(*(_episode() for _ in range(40))))
    [batch] = replay.batches()
    assert "start 1" in {row.observations[0].text for row in batch}


def test_metrics_by_hand() -> None:
    replay = _replay()
    assert replay.metrics(3) == {"buffer_size": 0.0, "buffer_hindsight_share": 0.0, "buffer_oldest_age": 3.0}
    replay.add(_collected(_episode(version=4), _episode(version=6)))
    assert replay.metrics(10) == {
        "buffer_size": 16.0,
        "buffer_hindsight_share": pytest.approx(5 / 8),
        "buffer_oldest_age": 6.0,
    }


def test_its_state_goes_on_with_the_same_batches() -> None:
    original = _replay()
    original.add(_collected(_episode(1), _episode(2)))
    list(original.batches())
    restored = _replay(seed=99)
    restored.load_state(json.loads(json.dumps(original.state())))
    for _ in range(3):
        assert list(restored.batches()) == list(original.batches())
        for replay in (original, restored):
            replay.add(_collected(_episode(3)))
    assert restored.metrics(7) == original.metrics(7)


def test_on_policy_experience_gives_each_interval_once_and_forgets_the_one_before() -> None:
    experience = OnPolicy()
    first, second = _episode(1), _episode(2)
    for episode in (first, second):
        played = window(episode, "goal", 0, 3, 1.0)
        experience.add(RolloutBatch((_episode(9),), (played,)))
        assert list(experience.batches()) == [(played,)]
    assert experience.metrics(3) == {}
    assert experience.state() == {}


def _graph_replay(seed: int, share: float, rewards: Rewards = GOAL_REWARDS, **settings: Any) -> HindsightReplay:
    config = ReplayConfig(hindsight=Graph(share=share), **settings)
    sac = SacConfig(n_step=3, td_lambda=0.9, gamma=0.5, batch_size=3, updates_per_interval=1)
    buffer = ReplayBuffer(config, lambda goal: "any", {"any": 1.0}, 0.5, rewards)
    return HindsightReplay(buffer, np.random.default_rng(seed), WindowSampler(sac, rewards=rewards))


def _x_then_y() -> Episode:
    """It plays x, y and x; the second step achieves b, its goal, after which nothing counts for b."""
    return replace(_episode(), goal="b")


def test_windows_know_what_the_graph_of_the_kept_episodes_knows() -> None:
    replay = _graph_replay(0, 0.0, capacity=3)
    replay.add(_collected(_x_then_y()))
    known = {0: (0.5, UNTRIED), 1: (UNTRIED, 1.0), 2: (UNTRIED, UNTRIED)}
    states = {Observation(f"state {t}", ("x", "y")): values for t, values in known.items()}
    for window_ in replay.batches()[0]:
        assert window_.known == tuple(states[state] for state in window_.observations[: len(window_)])

    resumed = _graph_replay(1, 0.0, capacity=3)
    resumed.load_state(json.loads(json.dumps(replay.state())))
    assert resumed.batches() == replay.batches()

    # Three steps are all that it keeps: with the next episode what this one knew is forgotten.
    replay.add(_collected(replace(_episode(), goal="goal", start=Observation("elsewhere", ("x", "y")))))
    replay.batches()
    assert replay.buffer.graph().action_values("b", Observation("state 0", ("x", "y"))) == (UNTRIED, UNTRIED)


def test_steps_on_the_graph_bootstrap_above_the_best_known_path() -> None:
    replay = _graph_replay(0, 1.0)
    replay.add(_collected(_x_then_y()))
    found = {(w.observations[0].text, w.goal): w for _ in range(20) for w in replay.batches()[0]}
    assert {goal for _, goal in found} == set(replay.buffer.graph().goals)
    assert all((len(row), row.source) == (1, "hindsight") for row in found.values())
    before, last = found["state 0", "b"], found["state 1", "b"]
    assert (before.rewards, before.terminated, before.known) == ((0.0,), False, ((0.5, UNTRIED),))
    assert (last.rewards, last.terminated, last.known) == ((1.0,), True, ((UNTRIED, 1.0),))


def _steps_from_state_0(*others: Step, action: int) -> list[Window]:
    """Steps towards b with this action from the first state: of `_x_then_y`, and of an episode for each of `others`."""
    replay = _graph_replay(0, 1.0)
    replay.add(_collected(_x_then_y()))
    for other in others:
        replay.add(_collected(Episode("b", _x_then_y().start, (Decision(action, 0.0, 0),), (other,), seed=0)))
    rows = [w for _ in range(20) for w in replay.batches()[0] if w.goal == "b" and w.actions == (action,)]
    return [row for row in rows if row.observations[0].text == "state 0"]


def test_a_known_step_whose_action_leads_nowhere_is_followed_by_its_value() -> None:
    off = _steps_from_state_0(Step(Observation("nowhere", ("x", "y")), 0.0, (), False, True), action=1)
    assert off
    assert all((w.rewards, w.terminated, w.known) == ((0.0,), False, ((0.5, 0.0),)) for w in off)


def test_a_loss_ends_a_known_step() -> None:
    off = _steps_from_state_0(Step(Observation("nowhere", ("x", "y")), 0.0, (), True, False), action=1)
    assert off
    assert all((w.rewards, w.terminated, w.known) == ((0.0,), True, ((0.5, 0.0),)) for w in off)


def test_a_loss_after_its_own_goal_ends_a_known_step_towards_another() -> None:
    # On its way to b, which y achieves in state 1, an episode achieved its own goal, and then lost by x.
    replay, both = _graph_replay(0, 1.0), ("x", "y")
    replay.add(_collected(_x_then_y()))
    found = Step(Observation("state 1", both), 1.0, ("own",), True, False)
    lost = Step(Observation("nowhere", both), 0.0, (), True, False)
    decisions = (Decision(0, 0.0, 0),) * 2
    replay.add(_collected(Episode("own", Observation("elsewhere", both), decisions, (found, lost), seed=0)))
    rows = [w for _ in range(40) for w in replay.batches()[0] if (w.goal, w.actions) == ("b", (0,))]
    off = [row for row in rows if row.observations[0].text == "state 1"]
    assert off
    assert all((w.rewards, w.terminated, w.known) == ((0.0,), True, ((0.0, 1.0),)) for w in off)


def test_where_chance_decides_a_known_step_returns_the_mean_of_its_outcomes() -> None:
    # x led from state 0 to state 1, from which b is one step away, and to nowhere: 0.5 * 0.5 * 1 + 0.5 * 0.
    slipped = _steps_from_state_0(Step(Observation("nowhere", ("x", "y")), 0.0, (), False, True), action=0)
    assert slipped
    assert all((w.rewards, w.terminated, w.known) == ((0.25,), True, ((0.25, UNTRIED),)) for w in slipped)


def test_where_chance_decides_the_known_mean_bounds_no_step_towards_its_own_goal() -> None:
    replay, nowhere = _graph_replay(0, 0.0), Step(Observation("nowhere", ("x", "y")), 0.0, (), False, True)
    replay.add(_collected(_x_then_y()))
    replay.add(_collected(Episode("b", _x_then_y().start, (Decision(0, 0.0, 0),), (nowhere,), seed=0)))
    rows = [w for _ in range(20) for w in replay.batches()[0] if w.goal == "b"]
    bounds = {(w.observations[t].text, w.actions[t]): w.bounds[t] for w in rows for t in range(len(w))}
    # x of state 0 led to state 1 and to nowhere; y of state 1 always achieves b.
    assert (bounds["state 0", 0], bounds["state 1", 1]) == (UNTRIED, 1.0)


def test_before_a_state_in_which_all_was_tried_a_known_step_returns_its_known_value() -> None:
    # In state 1, y achieves b; once x has been tried there too, 0.5 * 1 is all that is to be had from state 0.
    replay, nowhere = _graph_replay(0, 1.0), Step(Observation("nowhere", ("x", "y")), 0.0, (), False, True)
    replay.add(_collected(_x_then_y()))
    replay.add(_collected(Episode("b", Observation("state 1", ("x", "y")), (Decision(0, 0.0, 0),), (nowhere,), seed=0)))
    rows = [w for _ in range(20) for w in replay.batches()[0] if (w.observations[0].text, w.goal) == ("state 0", "b")]
    assert rows
    assert all((w.rewards, w.terminated, w.known) == ((0.5,), True, ((0.5, UNTRIED),)) for w in rows)


@pytest.mark.parametrize(("paid", "target"), [(1.0, (2.0, True)), (3.0, (0.0, False))])
def test_with_own_rewards_a_known_value_is_the_target_only_if_what_is_unknown_could_not_raise_it(
    paid: float, target: tuple[float, bool]
) -> None:
    # In state 1, `y` earned 4 and ended; `x` earned `paid` before the episode was cut off, in a state that may be worth
    # as much as the best known one: paid + 0.5 * 4, which is less or more than 4. State 2 earned 3 once and 5 once.
    both, decisions = ("x", "y"), (Decision(0, 0.0, 0), Decision(1, 0.0, 0))
    first = Step(Observation("state 1", both), 0.0, (), False, False)
    cut_off = Step(Observation("nowhere", both), paid, (), False, True)
    last = Step(Observation("end", both), 4.0, (), True, False)
    replay = _graph_replay(0, 1.0, Rewards(own=True, success=None))
    replay.sampler = replace(replay.sampler, algo=replay.sampler.algo.model_copy(update={"reward_scale": 1.0}))
    replay.add(_collected(Episode("b", Observation("state 0", both), decisions, (first, last), seed=0)))
    replay.add(_collected(Episode("b", Observation("state 1", both), decisions[:1], (cut_off,), seed=0)))
    for ended in (replace(last, reward=3.0), replace(last, reward=5.0)):
        replay.add(_collected(Episode("b", Observation("state 2", both), decisions[1:], (ended,), seed=0)))
    rows = {(w.observations[0].text, w.actions[0]): w for _ in range(20) for w in replay.batches()[0]}
    assert rows["state 0", 0].bounds == (2.0,)
    assert (*rows["state 0", 0].rewards, rows["state 0", 0].terminated) == target
    assert (*rows["state 2", 1].rewards, rows["state 2", 1].terminated) == (4.0, True)
    graph = replay.buffer.graph()
    assert graph.settled("b", Observation("state 1", both), 1)
    assert graph.settled("b", Observation("state 0", both), 0) == target[1]


def test_known_steps_are_rewarded_as_the_environment_does() -> None:
    own = replace(_x_then_y(), steps=tuple(replace(s, reward=-1.0) for s in _x_then_y().steps))
    replay = _graph_replay(0, 1.0, Rewards(own=True, success=20.0))
    replay.add(_collected(own))
    rows = {w.observations[0].text: w for _ in range(20) for w in replay.batches()[0] if w.goal == "b"}
    before, last = rows["state 0"], rows["state 1"]
    assert (before.rewards, before.terminated, before.known) == ((-1.0,), False, ((9.0, UNTRIED),))  # -1 + 0.5 * 20
    assert (last.rewards, last.terminated, last.known) == ((20.0,), True, ((UNTRIED, 20.0),))


def test_a_quarter_of_each_batch_is_drawn_from_demonstrations() -> None:
    config, theirs = ReplayConfig(capacity=4, hindsight=Uniform()), 16
    own, ring = (
        ReplayBuffer(config.model_copy(update={"capacity": size}), lambda goal: "any", {"any": 1.0})
        for size in (4, 100)
    )
    sampler = WindowSampler(SacConfig(n_step=1, batch_size=64, updates_per_interval=3))
    replay = HindsightReplay(own, np.random.default_rng(0), sampler, ring)
    for _ in range(5):  # far more than the capacity, from which no demonstration is evicted
        replay.add(_collected(_episode()))
    ring.add(replace(_episode(), goal="demonstrated"))
    for batch in replay.batches():
        demonstrated = [each for each in batch if each.source == "real" and each.goal == "demonstrated"]
        relabelled = [each for each in batch[64 - theirs :] if each.source == "hindsight"]
        assert (len(batch), len(demonstrated) + len(relabelled)) == (64, theirs)
        assert relabelled


def test_demonstrations_are_part_of_the_graph() -> None:
    config = ReplayConfig(hindsight=Graph(share=1.0))
    own = ReplayBuffer(config, lambda goal: "any", {"any": 1.0}, 0.5)
    own.others = [_episode()]
    own.add(replace(_episode(), steps=_episode().steps[:1], decisions=_episode().decisions[:1]))
    # `b` was achieved from `state 1`, which the agent has reached, by the demonstration alone.
    assert own.graph().action_values("b", _episode().start) == (0.5, UNTRIED)


def test_an_imagined_goal_has_a_type_of_its_own_if_the_environment_does_not_know_it() -> None:
    values = {"env": {"name": "playground_simple"}, "replay": {"hindsight": "uniform", "capacity": 300}}
    episode = replace(_episode(), goal="Grow red cat")
    steps = [
        replace(step, achieved=goals) for step, goals in zip(episode.steps, [("Grow red door",), (), ()], strict=True)
    ]
    episode = replace(episode, steps=tuple(steps))

    def experience(partner: dict[str, Any]) -> HindsightReplay:
        config = parse({**values, "partner": partner})
        found = collector(config, UniformScorer(), PhaseClock()).experience
        assert isinstance(found, HindsightReplay)
        return found

    imagines = experience({"type": "judge", "imagine": 0.5})
    imagines.add(_collected(episode))
    assert [imagines.buffer.type_names[kind] for kind in imagines.buffer.types] == ["grow"] * 3 + ["imagined"]
    again = experience({"type": "judge", "imagine": 0.5})
    again.load_state(imagines.state())
    assert again.buffer.types.tolist() == imagines.buffer.types.tolist()
    with pytest.raises(ConfigError, match="'Grow red door' is not a goal"):
        experience({"type": "judge"}).add(_collected(episode))
