"""Directed exploration: by hand, against shortest paths found otherwise, and in a corridor where chance fails."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sacglam.clock import PhaseClock
from sacglam.envs import Split
from sacglam.exploration import Exploration
from sacglam.goals import Start
from sacglam.policy import SamplingPolicy
from sacglam.replay.graph import ReplayGraph
from sacglam.rollout import Rollout
from sacglam.scoring.base import UniformScorer
from sacglam.types import Decision, Episode, Observation, Rewards, Step

ACTIONS = ("left", "right")
EMPTY = ReplayGraph([], 0.9)


def state(name: str) -> Observation:
    return Observation(name, ACTIONS)


def way(
    known: Mapping[str, Sequence[Mapping[str, int]]], name: str, graph: ReplayGraph = EMPTY
) -> tuple[list[int], bool]:
    """`known`: how often each action of a state led where; an empty name for termination."""
    outcomes = {
        state(here): Counter(
            {(a, state(each) if each else None): n for a, led in enumerate(actions) for each, n in led.items()}
        )
        for here, actions in known.items()
    }
    actions, found = Exploration(1.0, np.random.default_rng(), lambda: graph).actions("goal", state(name), [outcomes])
    return list(actions), found


def test_in_a_state_that_nobody_has_seen_any_action():
    step = Step(state("B"), 0.0, (), False, True)  # left was tried once elsewhere
    graph = ReplayGraph([Episode("goal", state("C"), (Decision(0, 0.0, 0),), (step,), 0)], 0.9)
    assert way({}, "A", graph) == ([0, 1], True)


def test_an_untried_action_comes_first():
    assert way({"A": [{}, {"B": 1}]}, "A") == ([0], True)


def test_else_the_shortest_way_to_one():
    # Left of A is B, whose left is C; right of A is D, whose actions are known; C has not been left yet.
    known = {"A": [{"B": 1}, {"D": 1}], "B": [{"C": 1}, {"A": 1}], "D": [{"A": 1}, {"D": 1}]}
    assert way(known, "A") == ([0], False)
    assert way(known, "D") == ([0], False)
    assert way({**known, "D": [{"A": 1}, {}]}, "A") == ([1], False), "D itself has an untried one"


def test_of_untried_actions_the_one_whose_text_is_rarest():
    here = Observation("A", ("wait", *ACTIONS))
    step = Step(state("B"), 0.0, (), False, True)
    starts = (here, state("C"))  # wait was tried here, left elsewhere
    graph = ReplayGraph([Episode("goal", start, (Decision(0, 0.0, 0),), (step,), 0) for start in starts], 0.9)
    found = Exploration(1.0, np.random.default_rng(), lambda: graph).actions("goal", here)
    assert found == ([2], True)


def test_all_ways_of_one_length():
    assert way({"A": [{"B": 1}, {"C": 1}]}, "A") == ([0, 1], False)
    assert way({"A": [{"B": 1, "A": 3}, {"A": 1}]}, "A") == ([0], False), "by chance it may stay where it is"


def test_open_episodes_and_the_graph_count_together():
    step = Step(state("A"), 0.0, (), False, True)
    graph = ReplayGraph([Episode("goal", state("A"), (Decision(0, 0.0, 0),), (step,), 0)], 0.9)
    assert way({}, "A", graph) == ([1], True)
    assert way({"A": [{}, {"B": 1}]}, "A", graph) == ([1], False), "B is new"
    assert graph.tries == {"left": 1}


def test_an_unknown_goal_is_looked_for_where_least_was_tried():
    known = {"A": [{"A": 3}, {"B": 2}], "B": [{"A": 2}, {"": 1}]}  # right of B ended the episode
    assert way(known, "A") == ([1], False)
    assert way(known, "B") == ([1], True)
    assert way({"A": [{"A": 2}, {"B": 2}], "B": [{"A": 2}, {"": 2}]}, "A") == ([0, 1], True)


def test_a_known_goal_needs_no_second_try():
    step = Step(state("B"), 1.0, ("goal",), True, False)
    graph = ReplayGraph([Episode("goal", state("A"), (Decision(1, 0.0, 0),), (step,), 0)], 0.9)
    assert way({"A": [{"A": 3}, {}]}, "A", graph) == ([0, 1], True), "what follows termination is not in reach"


@given(st.integers(2, 7), st.data())
def test_ways_are_the_shortest(size: int, data: Any) -> None:
    names = [str(number) for number in range(size)]
    led = st.dictionaries(st.sampled_from(names), st.integers(1, 2), max_size=2)
    known = {name: [data.draw(led), data.draw(led)] for name in names}
    reach = {"0": 0}  # distances by Bellman and Ford
    for _ in names:
        for name in list(reach):
            for follower in {**known[name][0], **known[name][1]}:
                reach[follower] = min(reach.get(follower, size), reach[name] + 1)
    fewest = min(sum(led.values()) for name in reach for led in known[name])
    nearest = min(reach[name] for name in reach if any(sum(led.values()) == fewest for led in known[name]))
    actions, found = way(known, "0")
    assert found == (nearest == 0)
    for action in actions:  # each leads one step nearer
        if found:
            assert sum(known["0"][action].values()) == fewest
            continue
        frontier = set(known["0"][action])
        for _ in range(nearest - 1):
            frontier = {follower for name in frontier for led in known[name] for follower in led}
        assert any(sum(led.values()) == fewest for name in frontier for led in known[name])


@dataclass
class Corridor:
    """Right leads on and left back to the start; an episode has 60 steps. By chance, one in 2^20 goes to the end."""

    length: int = 20
    at: int = 0
    t: int = 0
    name: str = "corridor"

    def goals(self, split: Split) -> Sequence[str]:
        return ("the end",)

    def goal_type(self, goal: str) -> str:
        return "task"

    def optimal_length(self) -> int | None:
        return self.length

    def reset(self, goal: str, seed: int) -> Observation:
        self.at = self.t = 0
        return state("0")

    def step(self, action: int) -> Step:
        self.t += 1
        self.at = self.at + 1 if action else 0
        over = self.at == self.length
        achieved = ("the end",) if over else ()
        return Step(state(str(self.at)), float(over), achieved, over, self.t == 60 and not over)


def steps_to_the_end(directed: bool) -> float:
    """Steps of two copies until one reaches the end, with a fifth of exploration on top of a random policy."""
    episodes: list[Episode] = []
    rng = np.random.default_rng(0)
    exploration = Exploration(0.2, rng, lambda: ReplayGraph(episodes if directed else [], 0.9))
    starts = (Start("the end", number) for number in count())
    rollout = Rollout([Corridor(), Corridor()], UniformScorer(), SamplingPolicy(rng), starts, PhaseClock())
    rollout.exploration = exploration
    for step in range(1500):
        episodes += rollout.step()
        if any(episode.success for episode in episodes):
            return 2 * step
    return np.inf


def test_a_corridor_that_chance_never_walks():
    assert steps_to_the_end(directed=True) < 1500
    assert steps_to_the_end(directed=False) == np.inf


def test_it_begins_where_another_episode_has_been() -> None:
    step = Step(state("B"), 1.0, ("goal 1",), True, False)
    kind: Callable[[str], str] = lambda goal: goal.split()[0]  # noqa: E731
    graph = ReplayGraph([Episode("goal 1", state("A"), (Decision(0, 0.0, 0),), (step,), 0)], 0.9, goal_type=kind)
    always, never = (Exploration(share, np.random.default_rng(0), lambda: graph) for share in (1, 0))
    other = {state("C"): Counter({(0, state("D")): 1})}
    assert always.begins("goal 2", state("A"))
    assert not always.begins("goal 2", state("B")), "no episode took an action there"
    assert not always.begins("goal 2", state("C"))
    assert always.begins("goal 2", state("C"), [other])
    assert always.begins("task 2", state("B")), "no goal of its type has been achieved"
    assert not never.begins("goal 2", state("A"), [other])
    seldom = Exploration(0.1, np.random.default_rng(0), lambda: graph)
    assert sum(seldom.begins("task 2", state("B")) for _ in range(1_000)) / 1_000 == pytest.approx(0.5, abs=0.05)
    assert sum(seldom.begins("task 2", state("A")) for _ in range(1_000)) / 1_000 == pytest.approx(0.1, abs=0.03)


def test_own_rewards_need_no_goal() -> None:
    steps = tuple(Step(state(name), 1.0, (), False, t == 1) for t, name in enumerate("AA"))
    graph = ReplayGraph([Episode("earn", state("A"), (Decision(0, 0.0, 0), Decision(1, 0.0, 0)), steps, 0)], 0.9)
    exploration = Exploration(0.1, np.random.default_rng(0), lambda: graph, Rewards(own=True, success=None))
    assert sum(exploration.begins("earn", state("B")) for _ in range(100)) == 0, "nobody has been there"
    more = {state("A"): Counter({(0, state("A")): 1})}
    assert [*exploration.actions("earn", state("A"), [more])[0]] == [0, 1], "not only the action tried least often"


def test_an_episode_does_not_explore_where_only_it_has_been() -> None:
    rng = np.random.default_rng(0)
    starts = (Start("the end", number) for number in count())
    rollout = Rollout([Corridor()], UniformScorer(), SamplingPolicy(rng), starts, PhaseClock())
    reached = Step(state("end"), 1.0, ("the end",), True, False)
    graph = ReplayGraph([Episode("the end", state("next to it"), (Decision(0, 0.0, 0),), (reached,), 0)], 0.9)
    rollout.exploration = Exploration(1.0, rng, lambda: graph)
    for _ in range(50):  # a random policy is often back at the start
        rollout.step()
        assert not rollout.state()[0]["exploring"]


def corridor(rng: np.random.Generator, first: int = 0) -> Rollout:
    starts = (Start("the end", number) for number in count(first))
    rollout = Rollout([Corridor(length=6)], UniformScorer(), SamplingPolicy(rng), starts, PhaseClock())
    there_and_back = tuple(Step(state(str(t % 2)), 0.0, (), False, t == 4) for t in (1, 2, 3, 4))
    actions = tuple(Decision(action, 0.0, 0) for action in (1, 0, 1, 0))
    graph = ReplayGraph([Episode("the end", state("0"), actions, there_and_back, 0)], 0.9)
    rollout.exploration = Exploration(0.3, rng, lambda: graph)
    return rollout


def test_a_way_half_walked_is_walked_on_after_a_restore():
    rng, walking = np.random.default_rng(1), 0
    rollout = corridor(rng)
    rollout.step()
    for _ in range(50):
        other = np.random.default_rng()
        other.bit_generator.state = rng.bit_generator.state
        resumed = corridor(other, first=1)
        resumed.restore(json.loads(json.dumps(rollout.state())))
        walking += rollout.state()[0]["exploring"]
        resumed.step(), rollout.step()
        assert [each["decisions"] for each in resumed.state()] == [each["decisions"] for each in rollout.state()]
        assert [each["exploring"] for each in resumed.state()] == [each["exploring"] for each in rollout.state()]
    assert walking >= 5
