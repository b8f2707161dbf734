"""The rollout: lockstep, order, versions, and open episodes that continue as if nothing had happened."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacglam.algos.ppo import PpoConfig
from sacglam.algos.sac import SacConfig
from sacglam.clock import PhaseClock
from sacglam.collector import collector
from sacglam.config import Config, override
from sacglam.config.sections import PromptConfig
from sacglam.envs import Split, TextEnv
from sacglam.envs.playground import Playground
from sacglam.errors import CheckpointError, DivergenceError, EnvironmentContractError
from sacglam.goals import GoalSource, Start
from sacglam.policy import SamplingPolicy, greedy
from sacglam.prompt import Prompt, query
from sacglam.rollout import Rollout
from sacglam.scoring.base import Scorer, UniformScorer
from sacglam.types import Episode, LogPolicy, Observation, Query, RolloutBatch, Step, Window


@dataclass
class Steady:
    """Counts its steps; an episode lasts as many as its goal says and terminates if that is even."""

    text: str = "{goal} {seed} at {t}"
    actions: tuple[str, ...] = ("a", "b")
    reward: float = 0.5
    achieved: tuple[str, ...] = ("x",)
    shorter: int = 0
    start_actions: tuple[str, ...] = ("a", "b")
    goal: str = ""
    seed: int = 0
    t: int = 0

    def goals(self, split: Split) -> Sequence[str]:
        return ("1", "2", "3")

    def goal_type(self, goal: str) -> str:
        return "count"

    def optimal_length(self) -> int | None:
        return None

    def reset(self, goal: str, seed: int) -> Observation:
        self.goal, self.seed, self.t = goal, seed, 0
        return Observation(self._text(), self.start_actions)

    def step(self, action: int) -> Step:
        assert action < len(self.actions if self.t else self.start_actions), "asked for an action that was not on offer"
        length = int(self.goal) - self.shorter
        assert self.t < length, "stepped on after the end"
        self.t += 1
        over = self.t == length
        terminated = over and length % 2 == 0
        return Step(
            Observation(self._text(), self.actions), self.reward, self.achieved, terminated, over and not terminated
        )

    def _text(self) -> str:
        return self.text.format(goal=self.goal, seed=self.seed, t=self.t)


@dataclass
class Scripted:
    """Prefers an action by the checksum of its text and the prompt; counts its calls as versions."""

    calls: int = 0
    asked: list[list[Query]] = field(default_factory=list)

    @property
    def version(self) -> int:
        return self.calls

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        self.calls += 1
        self.asked.append(list(queries))
        return [self._row(q) for q in queries]

    def _row(self, q: Query) -> LogPolicy:
        scores = np.array([crc32((q.prompt + action).encode()) % 97 / 20 for action in q.actions])
        return np.asarray(scores - np.log(np.exp(scores).sum()), dtype=np.float32)


def _starts(*goals: str) -> list[Start]:
    return [Start(goal, seed) for seed, goal in enumerate(goals)]


def _rollout(envs: Sequence[TextEnv], starts: Iterator[Start], scorer: Scorer | None = None) -> Rollout:
    return Rollout(envs, scorer or Scripted(), greedy, starts, PhaseClock())


def _names(episodes: Sequence[Episode]) -> list[tuple[str, int]]:
    return [(episode.goal, episode.seed) for episode in episodes]


def test_lockstep_by_hand() -> None:
    # Two environments, episodes of 2, 3, 1, 2 steps from one queue of starts:
    # step 1: 2a 3a | step 2: 2b (ends, 1 begins) 3b | step 3: 1a (ends, 2' begins) 3c (ends, no start left)
    # step 4: 2'a | step 5: 2'b (ends).
    scorer = Scripted()
    rollout = _rollout([Steady(), Steady()], iter(_starts("2", "3", "1", "2")), scorer)
    ended = [_names(rollout.step()) for _ in range(5)]
    assert ended == [[], [("2", 0)], [("1", 2), ("3", 1)], [], [("2", 3)]]
    states = [["2 0 at 0", "3 1 at 0"], ["2 0 at 1", "3 1 at 1"], ["1 2 at 0", "3 1 at 2"], ["2 3 at 0"], ["2 3 at 1"]]
    assert scorer.asked == [
        [query(text.split()[0], Observation(text, ("a", "b"))) for text in texts] for texts in states
    ], "one scoring pass a step, over the open episodes in order"


def test_an_episode_holds_what_was_seen_and_done() -> None:
    scorer = Scripted(calls=6)
    (episode,) = [e for ended in _rollout([Steady()], iter(_starts("2")), scorer).drain() for e in ended]
    assert (episode.goal, episode.seed, episode.start) == ("2", 0, Observation("2 0 at 0", ("a", "b")))
    assert [step.observation.text for step in episode.steps] == ["2 0 at 1", "2 0 at 2"]
    assert [(step.terminated, step.truncated) for step in episode.steps] == [(False, False), (True, False)]
    rows = Scripted().log_policy([query("2", episode.observation(t)) for t in range(2)])
    assert [d.action for d in episode.decisions] == [greedy(row) for row in rows]
    assert [d.log_prob for d in episode.decisions] == [float(row.max()) for row in rows]
    assert [d.version for d in episode.decisions] == [7, 8], "each decision has the version it was scored with"


def test_nothing_starts_before_the_first_step() -> None:
    taken: list[Start] = []

    def starts() -> Iterator[Start]:
        for start in _starts("1", "1", "1"):
            taken.append(start)
            yield start

    rollout = _rollout([Steady()], starts())
    assert rollout.state() == []
    assert taken == []
    rollout.step()
    assert len(taken) == 2, "the first start was played, the second begun"


@pytest.mark.parametrize(("env_steps", "lockstep"), [(1, 1), (3, 1), (4, 2), (6, 2), (0, 0)])
def test_collect_takes_at_least_so_many_steps(env_steps: int, lockstep: int) -> None:
    scorer = Scripted()
    rollout = _rollout([Steady(), Steady(), Steady()], GoalSource(("1",), np.random.default_rng(0)), scorer)
    episodes = list(rollout.collect(env_steps).episodes)
    assert scorer.calls == lockstep
    assert len(episodes) == 3 * lockstep, "episodes of one step end with each"


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 4), st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_windows_hold_each_step_of_an_interval_once_and_join_to_whole_episodes(
    copies: int, intervals: list[int]
) -> None:
    goals = [str(1 + i % 4) for i in range(60)]
    rollout = _rollout([Steady() for _ in range(copies)], iter(_starts(*goals)))
    parts: dict[Observation, list[Window]] = {}  # by the first observation, which names goal and seed
    ended: list[Episode] = []
    for lockstep in intervals:
        collected = rollout.collect(lockstep * copies)
        assert sum(map(len, collected.windows)) == lockstep * copies
        ended += collected.episodes
        for window in collected.windows:
            first = next((f for f, p in parts.items() if p[-1].observations[-1] == window.observations[0]), None)
            parts.setdefault(first or window.observations[0], []).append(window)
    for episode in ended:
        pieces = parts.pop(episode.start)
        assert {piece.goal for piece in pieces} == {episode.goal}
        assert sum((piece.actions for piece in pieces), ()) == tuple(d.action for d in episode.decisions)
        assert sum((piece.rewards for piece in pieces), ()) == tuple(s.reward for s in episode.steps)
        seen = [o for piece in pieces for o in piece.observations[1:]]
        assert seen == [s.observation for s in episode.steps]
        assert [piece.terminated for piece in pieces] == [False] * (len(pieces) - 1) + [episode.steps[-1].terminated]
    assert not any(piece.terminated for pieces in parts.values() for piece in pieces)


def test_steps_that_were_replayed_are_not_given_out_again() -> None:
    rollout = _rollout([Steady()], iter(_starts("4")))
    rollout.collect(2)
    restored = _rollout([Steady()], iter(()))
    restored.restore(rollout.state())
    [window] = restored.collect(1).windows
    assert len(window) == 1
    assert window == rollout.collect(1).windows[0]


def test_more_environments_than_starts_rest() -> None:
    scorer = Scripted()
    rollout = _rollout([Steady(), Steady(), Steady()], iter(_starts("2")), scorer)
    assert [_names(ended) for ended in rollout.drain()] == [[], [("2", 0)]]
    assert [len(asked) for asked in scorer.asked] == [1, 1]


def test_without_starts_the_scorer_is_not_asked() -> None:
    scorer = Scripted()
    rollout = _rollout([Steady()], iter(()), scorer)
    assert [episode for ended in rollout.drain() for episode in ended] == []
    assert rollout.collect(5) == RolloutBatch((), ())
    assert scorer.calls == 0


def test_at_random_the_scorer_is_not_asked_either() -> None:
    scorer = Scripted()
    rollout = _rollout([Steady()], iter(_starts("2", "2")), scorer)
    rollout.at_random = True
    [first] = rollout.collect(2).episodes
    assert [decision.log_prob for decision in first.decisions] == pytest.approx([-np.log(2)] * 2)
    assert scorer.calls == 0
    rollout.at_random = False
    rollout.collect(2)
    assert scorer.calls == 2


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 5), st.lists(st.sampled_from("1234"), max_size=12))
def test_drain_plays_every_start_exactly_once(copies: int, goals: list[str]) -> None:
    starts = _starts(*goals)
    rollout = _rollout([Steady() for _ in range(copies)], iter(starts))
    played = [episode for ended in rollout.drain() for episode in ended]
    assert sorted(_names(played)) == sorted((start.goal, start.seed) for start in starts)
    for episode in played:
        assert len(episode.steps) == len(episode.decisions) == int(episode.goal)


def test_time_is_counted_by_phase() -> None:
    clock = PhaseClock()
    Rollout([Steady()], Scripted(), greedy, iter(_starts("2")), clock).step()
    assert list(clock.seconds) == ["goals", "environment", "scoring"]
    assert all(seconds > 0 for seconds in clock.seconds.values())


# The real environment, and resuming.


@dataclass
class Run:
    """A rollout over Playground with all of its random state, as a run has it."""

    rollout: Rollout
    starts: GoalSource
    policy: SamplingPolicy
    scorer: Scripted | UniformScorer

    def save(self) -> str:
        """Everything, through JSON as on disk."""
        return json.dumps(
            {
                "rollout": self.rollout.state(),
                "starts": self.starts.rng.bit_generator.state,
                "policy": self.policy.rng.bit_generator.state,
                "version": self.scorer.version,
            }
        )

    def load(self, saved: str) -> None:
        values: dict[str, Any] = json.loads(saved)
        self.rollout.restore(values["rollout"])
        self.starts.rng.bit_generator.state = values["starts"]
        self.policy.rng.bit_generator.state = values["policy"]
        if isinstance(self.scorer, Scripted):
            self.scorer.calls = values["version"]


def _run(scorer: Scripted | UniformScorer, seed: int, copies: int = 3) -> Run:
    envs = [Playground(size="simple") for _ in range(copies)]
    starts = GoalSource(envs[0].goals("train"), np.random.default_rng(seed))
    policy = SamplingPolicy(np.random.default_rng(seed + 1))
    return Run(Rollout(envs, scorer, policy, starts, PhaseClock()), starts, policy, scorer)


def test_playground_episodes_obey_their_environment() -> None:
    run = _run(UniformScorer(), seed=0)
    episodes = run.rollout.collect(300).episodes
    assert len(episodes) >= 25  # 300 steps of at most 10, less the three open ones
    for episode in episodes:
        env = Playground(size="simple")
        assert env.reset(episode.goal, episode.seed) == episode.start
        assert [env.step(d.action) for d in episode.decisions] == list(episode.steps)
        last = episode.steps[-1]
        assert last.terminated != last.truncated
        assert episode.success == last.terminated
        assert not any(step.terminated or step.truncated for step in episode.steps[:-1])
        for t, decision in enumerate(episode.decisions):
            assert decision.log_prob == pytest.approx(-np.log(len(episode.observation(t).actions)))
            assert decision.version == 0


@pytest.mark.parametrize("make_scorer", [UniformScorer, Scripted])
@settings(deadline=None, max_examples=25)
@given(before=st.integers(0, 30), after=st.integers(1, 15), seed=st.integers(0, 1000))
def test_it_continues_after_restore_as_without(
    make_scorer: type[UniformScorer | Scripted], before: int, after: int, seed: int
) -> None:
    original = _run(make_scorer(), seed)
    for _ in range(before):
        original.rollout.step()
    resumed = _run(make_scorer(), seed + 77)
    resumed.load(original.save())
    for _ in range(after):
        assert resumed.rollout.step() == original.rollout.step()
    assert resumed.save() == original.save()


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 4), st.lists(st.sampled_from("1234"), max_size=8), st.integers(0, 12))
def test_a_drain_continues_after_restore_even_when_some_environments_rest(
    copies: int, goals: list[str], moment: int
) -> None:
    whole = [list(ended) for ended in _rollout([Steady() for _ in range(copies)], iter(_starts(*goals))).drain()]
    queue = iter(_starts(*goals))
    interrupted = _rollout([Steady() for _ in range(copies)], queue)
    for _ in range(moment):
        interrupted.step()
    scorer = Scripted(calls=moment)  # versions count on from there
    resumed = _rollout([Steady() for _ in range(copies)], queue, scorer)
    resumed.restore(json.loads(json.dumps(interrupted.state())))
    assert [ended for ended in resumed.drain() if ended] == [ended for ended in whole[moment:] if ended]


def test_more_environments_than_before_begin_new_episodes() -> None:
    state = _opened(Steady()).state()
    resumed = _rollout([Steady(), Steady()], iter(_starts("1")))
    resumed.restore(state)
    assert [(o["goal"], len(o["decisions"])) for o in resumed.state()] == [("3", 2), ("1", 0)]


def test_fewer_environments_than_before_are_refused() -> None:
    rollout = _rollout([Steady(), Steady()], iter(_starts("2", "2")))
    rollout.step()
    with pytest.raises(CheckpointError, match="copies=2"):
        _rollout([Steady()], iter(())).restore(rollout.state())


def _opened(env: TextEnv) -> Rollout:
    """An episode of three steps, two of them taken."""
    rollout = _rollout([env], iter([Start("3", 0)]))
    rollout.step()
    rollout.step()
    return rollout


@pytest.mark.parametrize(
    "changed",
    [
        Steady(text="{goal} {seed} now at {t}"),
        Steady(actions=("a", "c")),
        Steady(actions=("b", "a")),
        Steady(start_actions=("a", "c")),
        Steady(reward=0.25),
        Steady(achieved=()),
        Steady(achieved=("x", "y")),
        Steady(shorter=1),
        Steady(shorter=2),
        Steady(actions=("a",), start_actions=("a",)),
    ],
    ids=["text", "actions", "order", "start", "reward", "achieved", "achieved-more", "ends", "ended", "fewer-actions"],
)
def test_an_environment_that_does_not_repeat_itself_is_detected(changed: Steady) -> None:
    state = _opened(Steady()).state()
    state[0]["decisions"] = [[1, -0.1, 0], [1, -0.1, 0]]  # the second action, which `fewer-actions` lacks
    _rollout([Steady()], iter(())).restore(state)
    with pytest.raises(EnvironmentContractError, match=r"goal '3', seed 0\).*env\.repeats=false"):
        _rollout([changed], iter(())).restore(state)


def test_open_episodes_that_cannot_repeat_are_dropped() -> None:
    queue = iter(_starts("4", "3"))
    interrupted, resumed = (
        Rollout([Steady(text=text)], UniformScorer(), greedy, queue, PhaseClock(), repeats=False)
        for text in ("{goal} at {t}", "{goal} otherwise at {t}")
    )
    interrupted.step()
    resumed.restore(interrupted.state())
    [[episode]] = [ended for ended in resumed.drain() if ended]
    assert (episode.goal, len(episode.steps)) == ("3", 3)


def test_a_state_of_before_the_first_step_restores_to_a_fresh_start() -> None:
    resumed = _rollout([Steady()], iter(_starts("1")))
    resumed.restore(_rollout([Steady()], iter(_starts("1"))).state())
    assert _names(resumed.step()) == [("1", 0)]


def test_a_state_of_before_the_first_step_replaces_one_that_a_damaged_checkpoint_left() -> None:
    begun = _rollout([Steady()], iter(_starts("3")))
    begun.step()
    resumed = _rollout([Steady()], iter(_starts("1")))
    resumed.restore(begun.state())
    resumed.restore([])
    assert resumed.state() == []


@dataclass
class Broken:
    """Answers with one row of numbers, whatever is asked."""

    row: LogPolicy
    version: int = 0

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        return [self.row for _ in queries]


@pytest.mark.parametrize(
    "row", [[np.nan, np.nan], [np.nan, 0.0], [0.0, np.inf], [-np.inf, -np.inf], [0.0, 0.0], [0.0], [-1.1, -1.1, -1.1]]
)
def test_a_policy_that_is_none_ends_the_run_whoever_computed_it(row: list[float]) -> None:
    rollout = _rollout([Steady()], iter(_starts("3")), Broken(np.array(row, dtype=np.float32)))
    with pytest.raises(DivergenceError, match="add up to 1"):
        rollout.collect(1)


def test_a_policy_is_checked_before_it_is_saved() -> None:
    rollout = _rollout([Steady()], iter(_starts("3")), UniformScorer())
    rollout.check_policy()  # no episode has begun
    rollout.collect(1)
    rollout.check_policy()
    rollout.scorer = Broken(np.array([np.nan, np.nan], dtype=np.float32))
    with pytest.raises(DivergenceError, match="add up to 1"):
        rollout.check_policy()


def test_an_action_may_have_no_probability() -> None:
    rollout = _rollout([Steady()], iter(_starts("3")), Broken(np.array([0.0, -np.inf], dtype=np.float32)))
    [window] = rollout.collect(1).windows
    assert window.actions == (0,)


@pytest.mark.parametrize("windows", [True, False])
def test_a_step_late_in_an_episode_costs_as_much_as_an_early_one(windows: bool) -> None:
    prompt = Prompt(PromptConfig(history=2))
    env, starts = Steady(text="", actions=("a", "b", "c")), iter(_starts("20000"))
    rollout = Rollout([env], UniformScorer(), greedy, starts, PhaseClock(), prompt, windows=windows)
    spent = []
    for _ in range(8):
        started = time.process_time()
        for _ in range(2000):
            rollout.collect(1)
        spent.append(time.process_time() - started)
    assert min(spent[-3:]) < 2 * min(spent[:3]), spent


@pytest.mark.parametrize(("algo", "steps"), [(PpoConfig(), 6), (SacConfig(), 0)], ids=["ppo", "sac"])
def test_an_interval_is_cut_into_windows_for_ppo_alone(algo: PpoConfig | SacConfig, steps: int) -> None:
    config = override(Config(algo=algo), ["env.name=bitflip", "env.copies=2"])
    collected = collector(config, UniformScorer(), PhaseClock()).rollout.collect(6)
    assert sum(map(len, collected.windows)) == steps
