"""The replay buffer against a simple model of it: what it keeps, how it samples, and its form on disk."""

from __future__ import annotations

import functools
import json
import math
import operator
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacglam.algos.sac import SacConfig
from sacglam.config.sections import ReplayConfig
from sacglam.errors import CheckpointError, EnvironmentContractError
from sacglam.replay.buffer import Entry, ReplayBuffer
from sacglam.replay.graph import ReplayGraph
from sacglam.replay.sampling import Future, Graph, WindowSampler
from sacglam.runs import checkpoint
from sacglam.runs.checkpoint import Checkpoint
from sacglam.types import Decision, Episode, Observation, Source, Step

PRIOR = {"grasp": 1.0, "grow": 2.0, "wait": 5.0}
STRATEGIES: tuple[str, ...] = ("uniform", "ratio", "prior", "future")
# The probability of a larger chi-square is 0.001 under the distribution tested for; the seeds are fixed.
CHI_SQUARE_2, CHI_SQUARE_9 = 13.82, 27.88


def _drawn(buffer: ReplayBuffer, rng: np.random.Generator, size: int) -> Sequence[Entry]:
    return buffer.hindsight.entries(buffer, rng, size)


def _goal_type(goal: str) -> str:
    return goal.split()[0]


def _episode(number: int, goal: str = "grasp cow", source: Source = "real") -> Episode:
    """One step, which is stored once: for its own goal, or (without its own being stored) for one it achieved."""
    step = Step(
        Observation(f"state {(number + 1) % 7}", ("a", "b")),
        reward=number / 3,  # no short decimal: the round trip must be exact
        achieved=(goal,) if source == "hindsight" else (),
        terminated=number % 4 == 0,
        truncated=number % 4 != 0,
    )
    return Episode(
        goal="wait" if source == "hindsight" else goal,
        start=Observation(f"state {number % 7}", ("a", "b", "c")[: 1 + number % 3]),
        decisions=(Decision(number % 3, -number / 7, number),),
        steps=(step,),
        seed=number,
    )


def _entry(number: int, goal: str = "grasp cow", source: Source = "real") -> Entry:
    return Entry(_episode(number, goal, source), goal, 0)


def _add(buffer: ReplayBuffer, entries: Sequence[Entry]) -> None:
    """Only these entries: what an episode is stored as is tested by itself."""
    for entry in entries:
        buffer._append(entry)


def _mixed(count: int) -> list[Entry]:
    goals = ("grasp cow", "grow bush", "wait", "grasp dog")
    return [_entry(i, goals[i % 4], "hindsight" if i % 3 == 1 and i % 4 != 2 else "real") for i in range(count)]


def _config(capacity: int, sampling: str, ratio: float = 0.5) -> ReplayConfig:
    share = {"share": ratio} if sampling in ("ratio", "future") else {}
    return ReplayConfig.model_validate({"capacity": capacity, "hindsight": {"type": sampling, **share}})


def _buffer(capacity: int = 100, sampling: str = "uniform", ratio: float = 0.5) -> ReplayBuffer:
    return ReplayBuffer(_config(capacity, sampling, ratio), _goal_type, PRIOR)


def _filled(entries: Sequence[Entry], sampling: str = "uniform", ratio: float = 0.5) -> ReplayBuffer:
    buffer = _buffer(max(1, len(entries)), sampling, ratio)
    _add(buffer, entries)
    return buffer


def _version(entry: Entry) -> int:
    return entry.episode.decisions[entry.start].version


def _relabelled(entry: Entry) -> bool:
    return entry.goal != entry.episode.goal


def _contents(buffer: ReplayBuffer) -> list[int]:
    return sorted(_version(entry) for entry in buffer._ring)


def _chi_square(counts: Sequence[int], expected: Sequence[float]) -> float:
    return float(sum((count - mean) ** 2 / mean for count, mean in zip(counts, expected, strict=True)))


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 8), st.lists(st.integers(0, 6), max_size=6))
def test_it_keeps_the_newest(capacity: int, chunks: list[int]) -> None:
    buffer = _buffer(capacity)
    kept: deque[Entry] = deque(maxlen=capacity)
    stream = iter(_mixed(sum(chunks)))
    for chunk in chunks:
        added = [next(stream) for _ in range(chunk)]
        _add(buffer, added)
        kept.extend(added)
        assert len(buffer) == len(kept)
        assert _contents(buffer) == [_version(t) for t in kept]
        assert buffer.oldest_version() == (_version(kept[0]) if kept else 0)
        share = sum(_relabelled(t) for t in kept) / len(kept) if kept else 0.0
        assert buffer.hindsight_share() == pytest.approx(share)


def test_by_hand_the_fourth_of_three_replaces_the_first() -> None:
    buffer = _buffer(capacity=3)
    _add(buffer, _mixed(4))
    assert _contents(buffer) == [1, 2, 3]
    # By number: 0 real, 1 relabelled, 2 real, 3 real.
    assert buffer.hindsight_share() == pytest.approx(1 / 3)
    assert set(_drawn(buffer, np.random.default_rng(0), 50)) == set(_mixed(4)[1:])


@pytest.mark.parametrize("sampling", STRATEGIES)
@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_batch_has_its_size_and_holds_stored_transitions(sampling: str, size: int) -> None:
    stored = _mixed(10)
    batch = _drawn(_filled(stored, sampling), np.random.default_rng(0), size)
    assert len(batch) == size
    assert set(batch) <= set(stored)


@pytest.mark.parametrize("sampling", STRATEGIES)
def test_sampling_is_a_function_of_the_generator(sampling: str) -> None:
    buffer = _filled(_mixed(10), sampling)
    first, again = (_drawn(buffer, np.random.default_rng(5), 16) for _ in range(2))
    assert first == again
    assert _drawn(buffer, np.random.default_rng(6), 16) != first


def test_uniform_sampling_is_uniform() -> None:
    drawn = Counter(_version(t) for t in _drawn(_filled(_mixed(10)), np.random.default_rng(0), 10_000))
    assert _chi_square([drawn[i] for i in range(10)], [1000.0] * 10) < CHI_SQUARE_9


@pytest.mark.parametrize(
    ("ratio", "size", "relabelled"), [(0.5, 64, 32), (0.25, 64, 16), (0.8, 10, 8), (0.0, 9, 0), (1.0, 9, 9)]
)
def test_ratio_sampling_counts_exactly(ratio: float, size: int, relabelled: int) -> None:
    # 2 relabelled among 40: the share in the buffer does not matter.
    stored = [_entry(i, source="hindsight" if i < 2 else "real") for i in range(40)]
    buffer = _filled(stored, "ratio", ratio)
    for seed in range(3):
        batch = _drawn(buffer, np.random.default_rng(seed), size)
        assert sum(_relabelled(t) for t in batch) == relabelled


def test_ratio_sampling_keeps_the_share_in_small_draws() -> None:
    """Of one window each, as a batch of windows ends: not always the same kind."""
    stored = [_entry(i, source="hindsight" if i < 2 else "real") for i in range(40)]
    buffer, rng = _filled(stored, "ratio", 0.25), np.random.default_rng(0)
    assert sum(_relabelled(_drawn(buffer, rng, 1)[0]) for _ in range(4_000)) == pytest.approx(1_000, abs=100)


def test_ratio_sampling_is_uniform_within_each_half() -> None:
    stored = [_entry(i, source="hindsight" if i < 3 else "real") for i in range(6)]
    drawn = Counter(_version(t) for t in _drawn(_filled(stored, "ratio"), np.random.default_rng(0), 6_000))
    for half in (range(3), range(3, 6)):
        assert _chi_square([drawn[i] for i in half], [1000.0] * 3) < CHI_SQUARE_2


@pytest.mark.parametrize("source", ["real", "hindsight"])
def test_ratio_sampling_takes_what_there_is(source: Source) -> None:
    stored = [_entry(i, source=source) for i in range(5)]
    batch = _drawn(_filled(stored, "ratio"), np.random.default_rng(0), 200)
    assert set(batch) == set(stored)


def test_prior_sampling_follows_the_environment_s_goal_types() -> None:
    # The buffer holds 30 : 8 : 2, the environment has 1 : 2 : 5.
    goals = ["grasp cow"] * 30 + ["grow bush"] * 8 + ["wait"] * 2
    stored = [_entry(i, goal) for i, goal in enumerate(goals)]
    drawn = Counter(_goal_type(t.goal) for t in _drawn(_filled(stored, "prior"), np.random.default_rng(0), 8_000))
    assert _chi_square([drawn[name] for name in PRIOR], [1000.0, 2000.0, 5000.0]) < CHI_SQUARE_2


def test_prior_sampling_is_uniform_within_a_type() -> None:
    stored = [_entry(i, "grow bush") for i in range(10)]
    drawn = Counter(_version(t) for t in _drawn(_filled(stored, "prior"), np.random.default_rng(1), 10_000))
    assert _chi_square([drawn[i] for i in range(10)], [1000.0] * 10) < CHI_SQUARE_9


def test_prior_sampling_makes_up_for_a_type_it_lacks() -> None:
    # No `grow`: what remains is 1 : 5.
    stored = [_entry(i, "grasp cow" if i < 9 else "wait") for i in range(10)]
    drawn = Counter(_goal_type(t.goal) for t in _drawn(_filled(stored, "prior"), np.random.default_rng(0), 6_000))
    assert drawn.keys() == {"grasp", "wait"}
    assert drawn["grasp"] == pytest.approx(1000, abs=100)


def test_prior_sampling_of_types_without_weight_is_uniform() -> None:
    buffer = ReplayBuffer(_config(4, "prior"), _goal_type, {"grasp": 0.0, "grow": 1.0})
    stored = [_entry(i, "grasp cow") for i in range(4)]
    _add(buffer, stored)
    assert set(_drawn(buffer, np.random.default_rng(0), 100)) == set(stored)


def test_a_goal_of_an_unknown_type_is_refused_and_leaves_the_buffer_as_it_was() -> None:
    buffer = _filled(_mixed(3))
    with pytest.raises(EnvironmentContractError, match="'jump over dog'"):
        buffer.add(_episode(9, "jump over dog"))
    assert _contents(buffer) == [0, 1, 2]


@pytest.mark.parametrize("sampling", ["prior", "graph"])
def test_there_may_be_as_many_types_as_goals(sampling: str) -> None:
    types = [f"{number:06}" for number in range(40_000)]
    buffer = ReplayBuffer(_config(100_000, sampling), lambda goal: goal, dict.fromkeys(types, 1.0))
    for number, goal in enumerate((types[0], types[-1])):
        buffer.add(_episode(number, goal))
    assert buffer.types.tolist() == [0, 39_999]
    assert buffer._achieved is None  # 4 GB, which only `future` needs


@pytest.mark.parametrize("sampling", STRATEGIES)
@settings(deadline=None, max_examples=12)
@given(capacity=st.integers(1, 9), before=st.integers(1, 30), after=st.integers(0, 12))
def test_it_goes_on_from_disk_as_if_nothing_had_happened(
    tmp_path_factory: pytest.TempPathFactory, sampling: str, capacity: int, before: int, after: int
) -> None:
    stream = _mixed(before + after)
    original = _buffer(capacity, sampling)
    _add(original, stream[:before])
    saved = Checkpoint({}, {"replay": original.state()})
    folder = checkpoint.save(tmp_path_factory.mktemp("checkpoints"), (1, 0), saved)
    found = checkpoint.load(folder)
    restored = _buffer(capacity, sampling)
    restored.load_state(found.values["replay"])
    rng, again = np.random.default_rng(3), np.random.default_rng(3)
    assert _drawn(restored, again, 20) == _drawn(original, rng, 20)
    # Going on overwrites the same places, in a ring that has wrapped around, too.
    for transition in stream[before:]:
        for buffer in (original, restored):
            _add(buffer, [transition])
        assert _drawn(restored, again, 5) == _drawn(original, rng, 5)
    assert restored.oldest_version() == original.oldest_version()
    assert restored.hindsight_share() == original.hindsight_share()
    assert len(restored) == len(original)


def test_loading_replaces_what_a_buffer_held() -> None:
    buffer = _buffer(capacity=5)
    _add(buffer, _mixed(5))
    other = _buffer(capacity=5)
    _add(other, [_entry(70, "wait"), _entry(71, "wait")])
    buffer.load_state(other.state())
    assert _contents(buffer) == [70, 71]
    assert buffer.hindsight_share() == 0.0


def test_an_empty_buffer_survives_the_disk(tmp_path: Path) -> None:
    found = checkpoint.load(checkpoint.save(tmp_path, (1, 0), Checkpoint({}, _buffer().state())))
    restored = _buffer()
    restored.load_state(found.values)
    assert len(restored) == 0
    _add(restored, _mixed(2))
    assert _contents(restored) == [0, 1]


def test_an_empty_buffer_has_achieved_nothing() -> None:
    assert _buffer(sampling="future").achieved.shape == (0, len(PRIOR))


def test_its_texts_are_stored_once() -> None:
    state = _filled(_mixed(30)).state()
    assert sorted(state["goals"]) == ["grasp cow", "grasp dog", "grow bush", "wait"]
    observed = {e.episode.observation(t) for e in _mixed(30) for t in (0, 1)}
    assert len(state["observations"]) == len(observed)


@pytest.mark.parametrize(("saved_with", "capacity"), [(6, 5), (6, 9), (9, 5)])
def test_another_capacity_is_refused(saved_with: int, capacity: int) -> None:
    original = _buffer(saved_with)
    _add(original, _mixed(8))
    with pytest.raises(CheckpointError, match=f"capacity {capacity}"):
        _buffer(capacity).load_state(original.state())


def test_a_larger_capacity_is_taken_while_the_ring_has_not_filled() -> None:
    original = _buffer(6)
    _add(original, _mixed(4))
    restored = _buffer(9)
    restored.load_state(original.state())
    _add(restored, [_entry(4)])
    assert _contents(restored) == [0, 1, 2, 3, 4]


def test_a_smaller_capacity_is_taken_while_all_fits_in_it() -> None:
    original = _buffer(9)
    _add(original, _mixed(6))
    restored = _buffer(6)
    restored.load_state(original.state())
    _add(restored, [_entry(6)])  # in the place of the oldest
    assert _contents(restored) == [1, 2, 3, 4, 5, 6]


# Four steps. The second achieves `grow bush` and three goals to grasp, the fourth another.
LONG = Episode(
    goal="wait",
    start=Observation("start", ("a",)),
    decisions=tuple(Decision(0, -1.0, 10 + t) for t in range(4)),
    steps=tuple(
        Step(Observation(f"after {t}", ("a",)), 0.0, achieved, False, t == 3)
        for t, achieved in enumerate([(), ("grow bush", "grasp cow", "grasp dog", "grasp cat"), (), ("grasp tea",)])
    ),
    seed=0,
)


def test_with_copies_an_episode_is_stored_up_to_each_goal_that_it_achieved() -> None:
    buffer = _buffer(sampling="ratio")
    buffer.add(LONG)
    counts = Counter((entry.goal, entry.start) for entry in buffer._ring)
    # 4 steps for its own goal, 2 for each of four goals, 4 for the last.
    lengths = {"wait": 4, "grow bush": 2, "grasp cow": 2, "grasp dog": 2, "grasp cat": 2, "grasp tea": 4}
    assert counts == Counter((goal, t) for goal, length in lengths.items() for t in range(length))
    assert buffer.hindsight_share() == pytest.approx(12 / 16)


def test_without_copies_it_is_stored_once() -> None:
    buffer = _buffer(sampling="future")
    buffer.add(LONG)
    assert [(entry.goal, entry.start) for entry in buffer._ring] == [("wait", t) for t in range(4)]
    assert buffer.hindsight_share() == pytest.approx(2 / 4)  # two steps achieved something


def test_types_are_drawn_first_then_achievements_of_them_then_goals_and_steps_on_the_way() -> None:
    config = ReplayConfig(capacity=4, hindsight=Future(share=1.0))
    buffer = ReplayBuffer(config, _goal_type, PRIOR)
    buffer.add(LONG)
    buffer.add(LONG)  # in place of the first
    drawn = Counter((entry.goal, entry.start) for entry in _drawn(buffer, np.random.default_rng(0), 12_000))
    # Half of the draws are `grow`; of the others half are of the fourth step, half of the second, which achieved three.
    expected = {("grow bush", t): 12_000 / 2 / 2 for t in range(2)}
    expected |= {("grasp tea", t): 12_000 / 4 / 4 for t in range(4)}
    expected |= {(f"grasp {name}", t): 12_000 / 12 / 2 for name in ("cow", "dog", "cat") for t in range(2)}
    assert drawn.keys() == expected.keys()
    for entry, count in expected.items():
        assert drawn[entry] == pytest.approx(count, abs=130), entry


def test_the_graph_relabels_with_each_type_of_goal_equally_often() -> None:
    config = ReplayConfig(hindsight=Graph(share=1.0))
    buffer = ReplayBuffer(config, _goal_type, PRIOR)
    buffer.add(LONG)
    batch = config.hindsight.batch(buffer, np.random.default_rng(0), WindowSampler(SacConfig()), 6_000)
    drawn = Counter(window.goal for window in batch)
    # Half of the rows are `grow`; four goals share the others, `tea` too, which is achieved later.
    expected = {"grow bush": 3_000} | {f"grasp {name}": 750 for name in ("tea", "cow", "dog", "cat")}
    assert drawn.keys() == expected.keys()
    for goal, count in expected.items():
        assert drawn[goal] == pytest.approx(count, abs=120), goal


@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("size", [1, 3, 16])
def test_a_fixed_share_of_what_is_drawn_gets_another_goal(ratio: float, size: int) -> None:
    buffer = _buffer(sampling="future", ratio=ratio)
    buffer.add(LONG)
    rng = np.random.default_rng(0)
    counts = [sum(entry.goal != "wait" for entry in _drawn(buffer, rng, size)) for _ in range(400)]
    assert set(counts) <= {math.floor(ratio * size), math.ceil(ratio * size)}
    assert sum(counts) / 400 == pytest.approx(ratio * size, abs=0.08)


def test_without_an_achievement_nothing_is_relabelled() -> None:
    buffer = _buffer(sampling="future", ratio=1.0)
    buffer.add(_episode(1))
    assert {entry.goal for entry in _drawn(buffer, np.random.default_rng(0), 9)} == {"grasp cow"}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("entries", 1, 0), -1),
        (("entries", 1, 0), 9),
        (("entries", 1, 1), 4),
        (("entries", 1, 1), 3),  # a goal, but not one that the episode achieved
        (("entries", 1, 2), 1),
        (("entries", 1, 2), -1),
        (("entries", 1), [0, 0]),
        (("episodes", 1, "goal"), -1),
        (("episodes", 1, "seed"), 0.5),
        (("episodes", 1, "observations", 0), 99),
        (("episodes", 1, "observations"), [0]),
        (("episodes", 1, "observations"), []),
        (("episodes", 1, "actions", 0), -1),
        (("episodes", 1, "actions", 0), 9),
        (("episodes", 1, "actions"), []),
        (("episodes", 1, "rewards", 0), None),
        (("episodes", 1, "versions", 0), True),
        (("episodes", 1, "achieved", 0), [9]),
        (("episodes", 1, "achieved"), []),
        (("episodes", 1, "terminated"), [1]),
        (("episodes", 1, "truncated"), []),
        (("goals",), [None] * 4),
        (("goals",), "abcd"),
        (("observations",), [[]]),
        (("observations",), [["text", 1]]),
        (("next",), -1),
        (("next",), 0.5),
        (("next",), True),
    ],
)
def test_a_state_that_describes_no_episodes_is_refused(place: tuple[Any, ...], value: Any, tmp_path: Path) -> None:
    state = _filled(_mixed(6)).state()
    *path, last = place
    functools.reduce(operator.getitem, path, state)[last] = value
    values, refusals = {"progress": {"env_steps": 1, "updates": 0}, "replay": state}, list[str]()
    checkpoint.save(tmp_path, (1, 0), Checkpoint({}, values))
    with pytest.raises(CheckpointError, match="found none"):
        checkpoint.restore_newest(
            tmp_path, lambda saved: _buffer(6).load_state(saved.values["replay"]), refusals.append
        )
    [refusal] = refusals
    assert "step-0000000001" in refusal


def test_an_episode_leaves_with_its_last_entry() -> None:
    buffer = _buffer(capacity=3, sampling="future")
    first, second, long = _steps(2), _steps(2), _steps(5)
    buffer.add(first)
    buffer.add(second)  # overwrites one of the first's two entries
    assert buffer.episodes() == [first, second]
    buffer.add(long)  # and the first entry of its own
    assert buffer.episodes() == [long]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.sets(st.integers(0, 11)))
@settings(deadline=None)
def test_the_graph_is_that_of_the_episodes_in_the_buffer(numbers: list[int], asked: set[int]) -> None:
    buffer = ReplayBuffer(ReplayConfig(capacity=8, hindsight=Graph()), _goal_type, PRIOR, 0.5)
    for time, number in enumerate(numbers):
        buffer.add(_episode(number, source="hindsight"))
        if time in asked or time == len(numbers) - 1:
            found, wanted = buffer.graph(), ReplayGraph(buffer.episodes(), 0.5, goal_type=_goal_type)
            assert (found.goals_by_type, found.tries) == (wanted.goals_by_type, wanted.tries)
            for state in {episode.start for episode in buffer.episodes()}:
                assert found.outcomes(state) == wanted.outcomes(state)
                assert found.action_values("grasp cow", state) == wanted.action_values("grasp cow", state)


@settings(deadline=None, max_examples=30)
@given(
    before=st.lists(st.integers(1, 7) | st.just(150), min_size=20, max_size=70),
    after=st.lists(st.integers(1, 7), min_size=1, max_size=12),
    every=st.integers(1, 3),
)
def test_a_full_ring_s_graph_forgets_now_and_then_and_the_same_after_a_resume(
    before: list[int], after: list[int], every: int
) -> None:
    # A ring of 100 entries forgets at every second place; `every`: episodes between two uses of the graph.
    config = ReplayConfig(capacity=100, hindsight=Graph())
    original, restored = (ReplayBuffer(config, _goal_type, PRIOR, 0.5) for _ in range(2))
    for number, count in enumerate(before):
        original.add(_steps(count, number))
        if number % every == 0:
            original.graph()
    restored.load_state(json.loads(json.dumps(original.state())))
    for number, count in enumerate(after, len(before)):
        for buffer in (original, restored):
            buffer.add(_steps(count, number))
        found, again = original.graph(), restored.graph()
        assert list(found._numbers) == list(again._numbers)
        assert found._rows.tolist() == again._rows.tolist()
        held = [id(episode) for episode, t in found._places if t == 0]
        assert len(held) == len(set(held))
        gone = [episode for episode in original._left if episode not in original.episodes()]
        assert len(gone) == len(original._left) <= 2
        assert held == [id(episode) for episode in [*gone, *original.episodes()]]


def _steps(count: int, number: int | None = None) -> Episode:
    """An episode of so many steps."""
    one = _episode(count if number is None else 3 * number)
    return replace(one, decisions=one.decisions * count, steps=one.steps * count)
