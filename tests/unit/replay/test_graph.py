"""The replay graph: values worked out by hand, and against plain value iteration."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacglam.replay.graph import UNTRIED, ReplayGraph
from sacglam.types import Decision, Episode, Observation, Step

GAMMA = 0.5
ACTIONS = ("left", "right")


def state(name: str) -> Observation:
    return Observation(name, ACTIONS)


def episode(goal: str, names: str, actions: Sequence[int], achieved: dict[int, str], lost: bool = False) -> Episode:
    """States by one letter each; `achieved` by the number of the step; `lost`: it terminated without its goal."""
    steps = []
    for t, name in enumerate(names[1:]):
        goals = (achieved[t],) if t in achieved else ()
        terminated = goal in goals or (lost and t == len(actions) - 1)
        steps.append(Step(state(name), float(goal in goals), goals, terminated, False))
    decisions = tuple(Decision(action, 0.0, 0) for action in actions)
    return Episode(goal, state(names[0]), decisions, tuple(steps), seed=0)


def test_values_of_a_path_by_hand():
    graph = ReplayGraph(GAMMA)
    graph.add(episode("own", "ABC", [1, 0], {1: "goal"}))
    assert graph.action_values("goal", state("A")) == (UNTRIED, 0.5)
    assert graph.action_values("goal", state("B")) == (1.0, UNTRIED)
    assert graph.action_values("goal", state("C")) == (UNTRIED, UNTRIED)
    assert graph.action_values("own", state("A")) == (UNTRIED, 0.0)


def test_a_detour_falls_away():
    # A -> B -> A -> C, where the goal is achieved: from A it is one step, and the way by B is two more.
    graph = ReplayGraph(GAMMA)
    graph.add(episode("own", "ABAC", [0, 0, 1], {2: "goal"}))
    assert graph.action_values("goal", state("A")) == (0.25, 1.0)
    assert graph.action_values("goal", state("B")) == (0.5, UNTRIED)


def test_a_path_crosses_from_one_episode_into_another():
    graph = ReplayGraph(GAMMA)
    graph.add(episode("other", "AB", [1], {}))
    assert graph.action_values("goal", state("A")) == (UNTRIED, 0.0)
    graph.add(episode("own", "BC", [0], {0: "goal"}))
    assert graph.action_values("goal", state("A")) == (UNTRIED, 0.5)


def test_an_action_of_several_outcomes_has_their_mean():
    graph = ReplayGraph(GAMMA)
    for _ in range(3):
        graph.add(episode("own", "AC", [1], {0: "goal"}))
    graph.add(episode("own", "AA", [1], {}))
    # V = 3/4 + 1/4 * V/2, so V = 6/7.
    assert graph.action_values("goal", state("A"))[1] == pytest.approx(6 / 7, abs=1e-4)


def test_nothing_follows_a_lost_episode_but_something_follows_one_that_won_its_own_goal():
    graph = ReplayGraph(GAMMA)
    graph.add(episode("own", "BC", [0], {0: "goal"}))
    graph.add(episode("own", "AB", [0], {}, lost=True))
    assert graph.action_values("goal", state("A")) == (0.0, UNTRIED)
    graph.add(episode("near", "AB", [1], {0: "near"}))
    assert graph.action_values("goal", state("A")) == (0.0, 0.5)


def test_removing_what_was_added_leaves_nothing():
    graph = ReplayGraph(GAMMA)
    kept, other = episode("own", "AB", [0], {0: "goal"}), episode("own", "ABAC", [0, 1, 1], {2: "goal"})
    graph.add(kept)
    before = graph.action_values("goal", state("A"))
    graph.add(other)
    graph.remove(other)
    assert graph.action_values("goal", state("A")) == before
    graph.remove(kept)
    assert len(graph) == 0


STEP = st.tuples(st.sampled_from("ABCDE"), st.integers(0, 1), st.sampled_from("ABCDE"), st.booleans())


@given(st.lists(STEP, min_size=1, max_size=30), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_values_are_those_of_value_iteration_whatever_the_order(steps, random):
    def filled(order):
        graph = ReplayGraph(GAMMA)
        for here, action, there, achieves in order:
            graph.add(episode("own", here + there, [action], {0: "goal"} if achieves else {}))
        return graph

    graph = filled(steps)
    shuffled = filled(random.sample(steps, len(steps)))
    expected = dict.fromkeys("ABCDE", 0.0)
    for _ in range(60):
        expected = {name: max([*q_values(steps, expected, name).values(), 0.0]) for name in "ABCDE"}
    for name in "ABCDE":
        wanted, found = q_values(steps, expected, name), graph.action_values("goal", state(name))
        assert found == pytest.approx([wanted.get(action, UNTRIED) for action in (0, 1)], abs=1e-3)
        assert shuffled.action_values("goal", state(name)) == found


def q_values(steps, values, name):
    """The mean of what each action led to, by the definition."""
    outcomes: dict[int, list[float]] = {}
    for here, action, there, achieves in steps:
        if here == name:
            outcomes.setdefault(action, []).append(1.0 if achieves else GAMMA * values[there])
    return {action: sum(found) / len(found) for action, found in outcomes.items()}
