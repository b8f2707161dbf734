"""The replay graph: values worked out by hand, and against plain value iteration."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacglam.replay.graph import UNTRIED, ReplayGraph
from sacglam.types import Decision, Episode, Observation, Rewards, Step

GAMMA = 0.5
ACTIONS = ("left", "right")
NOTHING = (UNTRIED, UNTRIED)
OWN = Rewards(own=True, success=None)


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
    graph = ReplayGraph([episode("own", "ABC", [1, 0], {1: "goal"})], GAMMA)
    assert graph.action_values("goal", state("A")) == (UNTRIED, 0.5)
    assert graph.action_values("goal", state("B")) == (1.0, UNTRIED)
    assert graph.action_values("goal", state("C")) == NOTHING
    assert graph.action_values("own", state("A")) == NOTHING


@pytest.mark.parametrize("length", [20, 200])
def test_however_long_a_path_is_each_of_its_states_has_a_value(length: int):
    names = "".join(chr(ord("A") + t) for t in range(length + 1))
    graph = ReplayGraph([episode("own", names, [1] * length, {length - 1: "goal"})], GAMMA)
    assert graph.action_values("goal", state("A")) == (UNTRIED, GAMMA ** (length - 1))


def test_a_detour_falls_away():
    # A -> B -> A -> C, where the goal is achieved: from A it is one step, and the way by B is two more.
    graph = ReplayGraph([episode("own", "ABAC", [0, 0, 1], {2: "goal"})], GAMMA)
    assert graph.action_values("goal", state("A")) == (0.25, 1.0)
    assert graph.action_values("goal", state("B")) == (0.5, UNTRIED)


def test_a_path_crosses_from_one_episode_into_another():
    first, second = episode("other", "AB", [1], {}), episode("own", "BC", [0], {0: "goal"})
    assert ReplayGraph([first], GAMMA).action_values("goal", state("A")) == NOTHING
    assert ReplayGraph([first, second], GAMMA).action_values("goal", state("A")) == (UNTRIED, 0.5)


def test_with_a_history_places_that_look_alike_are_told_apart_by_the_way_there():
    # C looks the same, but action 0 reaches the goal only after B: an agent that remembers one step knows which.
    episodes = [episode("own", "BCG", [0, 0], {1: "goal"}), episode("own", "ACD", [0, 0], {})]
    assert ReplayGraph(episodes, GAMMA).action_values("goal", state("C")) == (0.5, UNTRIED)
    remembers = ReplayGraph(episodes, GAMMA, history=1)
    after_a, after_b = ((("A", ACTIONS[0]),), (("B", ACTIONS[0]),))
    assert remembers.action_values("goal", state("C"), after_b) == (1.0, UNTRIED)
    assert remembers.action_values("goal", state("C"), after_a) == NOTHING
    assert remembers.outcomes(state("C")) == {(0, state("G")): 1, (0, state("D")): 1}


def test_with_a_history_places_are_joined_whatever_the_way_there_until_an_action_has_two_outcomes():
    found, lost = episode("own", "BCG", [0, 0], {1: "goal"}), episode("own", "ACE", [0, 1], {})
    graph = ReplayGraph([found, lost], GAMMA, history=1)
    for past in ((("A", "left"),), (("B", "left"),), (("F", "right"),)):
        assert graph.action_values("goal", state("C"), past) == (1.0, 0.0)
        assert (graph.tried_all(state("C"), past), graph.varies(state("C"), 0, past)) == (True, False)
    assert graph.action_values("goal", state("A")) == (0.5, UNTRIED)
    graph.add([episode("own", "ACD", [0, 0], {})])  # so what `left` does depends on the way there
    assert graph.action_values("goal", state("C"), (("B", "left"),)) == (1.0, UNTRIED)
    assert graph.action_values("goal", state("C"), (("A", "left"),)) == NOTHING
    assert graph.action_values("goal", state("A")) == NOTHING
    assert not graph.tried_all(state("C"), (("F", "right"),))


def test_with_a_history_the_way_there_matters_if_an_action_ends_some_episodes_of_a_goal_and_not_others():
    # The place always looks the same, but `right` achieves the goal only after `left`.
    opened, shut = episode("own", "AAA", [0, 1], {1: "own"}), episode("own", "AA", [1], {})
    after_left = (("A", "left"),)
    assert ReplayGraph([opened], GAMMA, history=1).action_values("own", state("A")) == (0.5, 1.0)
    graph = ReplayGraph([opened, shut], GAMMA, history=1)
    assert graph.action_values("own", state("A"), after_left) == (UNTRIED, 1.0)
    assert graph.action_values("own", state("A")) == (0.5, 0.0)


WALK = st.tuples(
    st.lists(st.sampled_from("ABCDE"), unique=True, min_size=2), st.lists(st.integers(0, 1), min_size=4, max_size=4)
)


@given(st.lists(WALK, min_size=1, max_size=12))
@settings(deadline=None)
def test_with_a_history_values_are_those_of_places_named_after_the_way_there_if_it_matters(walks):
    led = {(names[t], actions[t]): set() for names, actions in walks for t in range(len(names) - 1)}
    for names, actions in walks:
        for t, following in enumerate(names[1:]):
            led[names[t], actions[t]].add(following)
    matters = any(len(following) > 1 for following in led.values())

    def walked(names, actions):
        return episode("own", names, actions[: len(names) - 1], {len(names) - 2: "goal"} if names[-1] == "E" else {})

    def renamed(names, actions):
        ways = ["", *(f"{name}{action}" for name, action in zip(names, actions, strict=False))]
        return [name + way if matters else name for name, way in zip(names, ways, strict=False)]

    remembers = ReplayGraph([walked(*walk) for walk in walks], GAMMA, history=1)
    expected = ReplayGraph([walked_as(renamed(*walk), walked(*walk)) for walk in walks], GAMMA)
    for names, actions in walks:
        for t, name in enumerate(renamed(names, actions)):
            past = walked(names, actions).past(t, 1)
            assert remembers.action_values("goal", state(names[t]), past) == expected.action_values("goal", state(name))


def walked_as(names, walk):
    """The same episode in places with other names."""
    steps = [replace(step, observation=state(name)) for step, name in zip(walk.steps, names[1:], strict=True)]
    return replace(walk, start=state(names[0]), steps=tuple(steps))


def test_an_action_of_several_outcomes_has_their_mean():
    hits = [episode("own", "AC", [1], {0: "goal"}) for _ in range(3)]
    graph = ReplayGraph([*hits, episode("own", "AA", [1], {})], GAMMA)
    # V = 3/4 + 1/4 * V/2, so V = 6/7.
    assert graph.action_values("goal", state("A"))[1] == pytest.approx(6 / 7, abs=1e-4)


def test_nothing_follows_a_lost_episode_but_something_follows_one_that_won_its_own_goal():
    episodes = [episode("own", "BC", [0], {0: "goal"}), episode("own", "AB", [0], {}, lost=True)]
    assert ReplayGraph(episodes, GAMMA).action_values("goal", state("A")) == NOTHING
    episodes.append(episode("near", "AB", [1], {0: "near"}))
    assert ReplayGraph(episodes, GAMMA).action_values("goal", state("A")) == (0.0, 0.5)


def test_nothing_follows_an_episode_lost_after_its_own_goal():
    # A partner named `own` at the first step, though the episode went on from B and was lost in C.
    named = episode("own", "ABC", [0, 0], {0: "own"}, lost=True)
    found = episode("other", "CD", [1], {0: "goal"})
    graph = ReplayGraph([named, found], GAMMA)
    assert graph.action_values("goal", state("C")) == (UNTRIED, 1.0)
    assert graph.action_values("goal", state("B")) == NOTHING
    assert graph.action_values("goal", state("A")) == NOTHING
    assert graph.outcomes(state("A")) == {(0, state("B")): 1}
    assert graph.outcomes(state("B")) == {(0, None): 1}


def test_a_loss_after_a_success_still_counts_where_rewards_are_the_environment_s_own():
    # From B, `right` lost 100 in an episode that had achieved `own` before; `left` achieves `goal`.
    lost = episode("own", "ABC", [0, 1], {0: "own"}, lost=True)
    lost = replace(lost, steps=(lost.steps[0], replace(lost.steps[1], reward=-100.0)))
    found = episode("other", "BD", [0], {0: "goal"})
    graph = ReplayGraph([lost, found], GAMMA, Rewards(own=True, success=20.0))
    assert graph.action_values("goal", state("B")) == (20.0, -100.0)


def test_steps_after_an_achievement_say_nothing_about_that_goal():
    # The second A -> B would count as a miss, though only its repetition kept it out of `achieved`.
    graph = ReplayGraph([episode("own", "ABAB", [0, 1, 0], {0: "goal"})], GAMMA)
    assert graph.action_values("goal", state("A")) == (1.0, UNTRIED)
    assert graph.action_values("goal", state("B")) == NOTHING


def test_drawn_steps_lead_to_the_goal_half_of_them_on_the_best_path_from_a_start():
    way = episode("own", "ABDC", [1, 0, 0], {2: "goal"})  # from A by B and D
    short = episode("own", "EAC", [0, 0], {1: "goal"})  # from E by A
    graph = ReplayGraph([episode("own", "FFF", [0, 0], {}), way, short], GAMMA)
    rng = np.random.default_rng(0)
    drawn = Counter(found.observation(t).text for found, t in (graph.draw(rng, "goal") for _ in range(4000)))
    # A quarter of each of A, B, D and E; and A alone, or E and A, on the paths from A and E.
    shares = {"A": 1 / 8 + 1 / 4 + 1 / 8, "B": 1 / 8, "D": 1 / 8, "E": 1 / 8 + 1 / 8}
    assert {name: count / 4000 for name, count in drawn.items()} == pytest.approx(shares, abs=0.03)
    assert list(graph.goals) == ["goal"]
    with pytest.raises(KeyError):
        graph.draw(rng, "own")


STEP = st.tuples(st.sampled_from("ABCDE"), st.integers(0, 1), st.sampled_from("ABCDE"), st.booleans())


@given(st.lists(STEP, min_size=1, max_size=30), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_values_are_those_of_value_iteration_whatever_the_order(steps, random):
    def filled(order):
        return ReplayGraph(
            [
                episode("own", here + there, [action], {0: "goal"} if achieves else {})
                for here, action, there, achieves in order
            ],
            GAMMA,
        )

    graph = filled(steps)
    shuffled = filled(random.sample(steps, len(steps)))
    expected = dict.fromkeys("ABCDE", 0.0)
    for _ in range(60):
        expected = {name: max([*q_values(steps, expected, name).values(), 0.0]) for name in "ABCDE"}
    for name in "ABCDE":
        wanted, found = q_values(steps, expected, name), graph.action_values("goal", state(name))
        values = [wanted.get(action, UNTRIED) for action in (0, 1)]
        assert found == pytest.approx(values if max(values) > 1e-9 else NOTHING, abs=1e-3)
        assert shuffled.action_values("goal", state(name)) == pytest.approx(found)


@given(st.lists(STEP, min_size=1, max_size=30), st.integers(0, 30))
@settings(deadline=None)
def test_episodes_added_later_count_like_those_given_at_first(steps, split):
    episodes = [
        episode(f"own {here}", here + there, [action], {0: f"goal {there}"} if achieves else {})
        for here, action, there, achieves in steps
    ]
    whole, parts = ReplayGraph(episodes, GAMMA), ReplayGraph(episodes[:split], GAMMA)
    first = [parts.action_values("goal A", state(name)) for name in "ABCDE"]
    assert first == [ReplayGraph(episodes[:split], GAMMA).action_values("goal A", state(name)) for name in "ABCDE"]
    parts.add(episodes[split:])
    assert (parts.goals_by_type, parts.tries) == (whole.goals_by_type, whole.tries)
    for name in "ABCDE":
        assert parts.outcomes(state(name)) == whole.outcomes(state(name))
        for goal in whole.goals:
            assert parts.action_values(goal, state(name)) == whole.action_values(goal, state(name))
    draws = [
        [graph.draw(np.random.default_rng(seed), goal) for seed in range(5)]
        for goal in whole.goals
        for graph in (whole, parts)
    ]
    assert draws[::2] == draws[1::2]


def q_values(steps, values, name):
    """The mean of what each action led to, by the definition."""
    outcomes: dict[int, list[float]] = {}
    for here, action, there, achieves in steps:
        if here == name:
            outcomes.setdefault(action, []).append(1.0 if achieves else GAMMA * values[there])
    return {action: sum(found) / len(found) for action, found in outcomes.items()}


def rewarded(
    names: str, actions: Sequence[int], rewards: Sequence[float], ends: bool = True, goal: str = "own"
) -> Episode:
    """An episode with the environment's own rewards, which terminates, or is cut off."""
    played = episode(goal, names, actions, {len(actions) - 1: goal} if ends else {})
    steps = [replace(step, reward=reward) for step, reward in zip(played.steps, rewards, strict=True)]
    return replace(played, steps=tuple(steps))


def test_an_action_that_once_led_into_a_cut_off_episode_has_no_value_of_its_other_outcomes():
    # From A, `left` won 10 once, and once led to B, from which nothing is known: the mean is not 10. `right` earns 5.
    won, lost, safe = (
        rewarded("AC", [0], [10.0]),
        rewarded("ABD", [0, 0], [-1.0, -1.0], False),
        rewarded("AC", [1], [5.0]),
    )
    assert ReplayGraph([won, lost, safe], GAMMA, OWN).action_values("own", state("A")) == (UNTRIED, 5.0)
    # Without `right`, no value is known. What is drawn is still a step that won.
    unknown = ReplayGraph([won, lost], GAMMA, OWN)
    assert unknown.action_values("own", state("A")) == NOTHING
    assert unknown.draw(np.random.default_rng(0), "own") == (won, 0)
    # E led to A and to F, and F to A and to B: so F has no value, and therefore E has none.
    more = [rewarded("EAC", [0, 1], [0.0, 5.0]), rewarded("EFAC", [0, 0, 1], [0.0, 0.0, 5.0])]
    graph = ReplayGraph([won, lost, safe, *more], GAMMA, OWN)
    assert graph.action_values("own", state("E")) == (1.875, UNTRIED)  # (5 / 2 + 5 / 4) / 2
    graph = ReplayGraph([won, lost, safe, *more, rewarded("FB", [0], [0.0], False)], GAMMA, OWN)
    assert graph.action_values("own", state("E")) == graph.action_values("own", state("F")) == NOTHING
    # Towards a goal, an outcome that leads nowhere counts as 0.
    goal = episode("own", "AC", [0], {0: "own"}), episode("own", "ABD", [0, 0], {})
    assert ReplayGraph(goal, GAMMA).action_values("own", state("A")) == (0.5, UNTRIED)


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_rewards_may_be_of_any_size(unit: float):
    graph = ReplayGraph([rewarded("ABCDE", [0] * 4, [0.0, 0.0, 0.0, unit])], GAMMA, OWN)
    assert graph.action_values("own", state("A"))[0] == unit / 8


def test_an_action_varies_if_it_earned_different_rewards():
    episodes = [rewarded("AB", [0], [4.0]), rewarded("AB", [0], [-4.0]), rewarded("AB", [1], [1.0])]
    graph = ReplayGraph(episodes, GAMMA, OWN)
    assert (graph.varies(state("A"), 0), graph.varies(state("A"), 1)) == (True, False)
    assert not ReplayGraph(episodes, GAMMA).varies(state("A"), 0)  # towards goals they do not count


def test_the_values_of_own_rewards_by_hand():
    # A -> B -> C for -1 and 10: Q(B) = 10, Q(A) = -1 + 10 / 2. Staying in A costs 3, and then 4 is still to be had.
    graph = ReplayGraph([rewarded("AABC", [1, 0, 1], [-3.0, -1.0, 10.0])], GAMMA, OWN)
    assert graph.action_values("own", state("A")) == (4.0, -1.0)
    assert graph.action_values("own", state("B")) == (UNTRIED, 10.0)
    assert graph.action_values("own", state("C")) == NOTHING


def test_with_own_rewards_a_step_that_leads_nowhere_known_has_no_value():
    # Cut off in D, from where it might cost any amount; -1 alone would look better than the path to the end.
    cut, whole = rewarded("AD", [0], [-1.0], ends=False), rewarded("ABC", [1, 0], [-1.0, -9.0])
    assert ReplayGraph([cut, whole], GAMMA, OWN).action_values("own", state("A")) == (UNTRIED, -5.5)
    assert not ReplayGraph([cut], GAMMA, OWN).goals


def test_with_own_rewards_what_a_lost_episode_cost_is_in_the_mean():
    # From A, `left` wins 20 once and loses 100 nine times, which nothing follows; `right` always leads to 8.
    lost = episode("own", "AD", [0], {}, lost=True)
    lost = replace(lost, steps=tuple(replace(step, reward=-100.0) for step in lost.steps))
    played = [rewarded("AC", [0], [20.0]), *[lost] * 9, rewarded("AE", [1], [8.0])]
    graph = ReplayGraph(played, GAMMA, Rewards(own=True, success=20.0))
    assert graph.action_values("own", state("A")) == pytest.approx((-88.0, 20.0), abs=1e-4)


def test_own_rewards_count_for_their_own_goal_alone():
    graph = ReplayGraph([rewarded("AB", [0], [7.0]), rewarded("AB", [1], [8.0], goal="other")], GAMMA, OWN)
    assert graph.action_values("own", state("A")) == (7.0, UNTRIED)
    assert graph.action_values("other", state("A")) == (UNTRIED, 8.0)


def test_a_known_reward_of_success_is_that_of_every_goal():
    # The second step achieved `goal` on the way to `own`, and would have been worth 20 instead of -4.
    played = episode("own", "ABC", [1, 0], {1: "goal"})
    costs = tuple(replace(step, reward=-4.0) for step in played.steps)
    graph = ReplayGraph([replace(played, steps=costs)], GAMMA, Rewards(own=True, success=20.0))
    assert graph.action_values("goal", state("B")) == (20.0, UNTRIED)
    assert graph.action_values("goal", state("A")) == (UNTRIED, 6.0)  # -4 + 20 / 2


def test_what_was_paid_for_another_goal_is_no_reward_on_the_way():
    # B -> C won 20 for `other`. Towards `goal` in D that step is worth something unknown, so only the detour counts.
    won = rewarded("BC", [0], [20.0], goal="other")
    on = episode("own", "BAECD", [1, 1, 0, 0], {3: "goal"})
    on = replace(on, steps=tuple(replace(step, reward=-1.0) for step in on.steps))
    graph = ReplayGraph([won, on], GAMMA, Rewards(own=True, success=20.0))
    assert graph.action_values("goal", state("C")) == (20.0, UNTRIED)
    assert graph.action_values("goal", state("B")) == (UNTRIED, -1 + (-1 + (-1 + 20 / 2) / 2) / 2)
    assert graph.action_values("other", state("B")) == (20.0, UNTRIED)


def test_waiting_where_a_goal_holds_is_no_way_to_it():
    # The first episode starts in B, where `goal` holds, and is paid 3 for waiting there; the second gets there.
    waits = episode("own", "BBC", [0, 1], {1: "own"})
    paid = tuple(replace(step, reward=3.0) for step in waits.steps)
    there = replace(on := episode("own", "AB", [0], {0: "goal"}), steps=(replace(on.steps[0], reward=-1.0),))
    graph = ReplayGraph([replace(waits, steps=paid), there], GAMMA, Rewards(own=True, success=5.0))
    assert graph.action_values("goal", state("A")) == (5.0, UNTRIED)
    assert graph.action_values("goal", state("B")) == NOTHING


def test_a_goal_that_held_from_the_start_need_not_be_listed_on_the_way_back():
    # From A, `left` leads to B, which is the goal. The second episode begins there, and does not list it on its return.
    there, back = episode("own", "AB", [0], {0: "goal"}), episode("own", "BAB", [1, 0], {})
    assert ReplayGraph([there, back], GAMMA).action_values("goal", state("A")) == (1.0, UNTRIED)
    # An episode that has not been in B before shows that `left` does not always achieve it.
    fails = episode("own", "CAB", [0, 0], {})
    assert ReplayGraph([there, fails], GAMMA).action_values("goal", state("A")) == (0.5, UNTRIED)
    # With a history, B at the end is another state than B at the start, but the goal holds in both.
    after_b = (("B", "right"),)
    splits = episode("own", "DBE", [0, 0], {})  # after D, `left` leads from B elsewhere
    remembers = ReplayGraph([episode("own", "BCBAB", [0, 0, 1, 0], {0: "goal"}), back, splits], GAMMA, history=1)
    assert remembers.action_values("goal", state("A"), after_b) == NOTHING
    others = [back, splits, episode("own", "FBC", [0, 0], {})]
    remembers = ReplayGraph([episode("own", "DBAB", [0, 1, 0], {2: "goal"}), *others], GAMMA, history=1)
    assert remembers.action_values("goal", state("A"), after_b) == (1.0, UNTRIED)


def test_all_actions_are_tried_in_a_state_after_the_same_steps():
    episodes = [episode("own", "ABC", [0, 0], {}), episode("own", "DBC", [0, 1], {}), episode("own", "ABC", [0, 1], {})]
    assert not ReplayGraph(episodes[:1], GAMMA).tried_all(state("B"))
    assert ReplayGraph(episodes[:2], GAMMA).tried_all(state("B"))
    after_a, after_d = (("A", "left"),), (("D", "left"),)
    assert ReplayGraph(episodes[:2], GAMMA, history=1).tried_all(state("B"), after_a)
    episodes.append(episode("own", "EBD", [0, 0], {}))  # what `left` does depends on the way there
    found = ReplayGraph(episodes, GAMMA, history=1)
    assert (found.tried_all(state("B"), after_a), found.tried_all(state("B"), after_d)) == (True, False)


def test_an_action_varies_if_it_led_to_several_states_after_the_same_steps():
    # From A, `left` ends one episode and not the next, but always leads to B; `right` leads to C or, after B, to D.
    ended, on = episode("own", "AB", [0], {0: "own"}), episode("on", "ABAD", [0, 0, 1], {})
    episodes = [ended, on, episode("on", "AC", [1], {})]
    graph = ReplayGraph(episodes, GAMMA)
    assert (graph.varies(state("A"), 0), graph.varies(state("A"), 1)) == (False, True)
    assert (graph.varies(state("D"), 0), graph.tried_all(state("D"))) == (False, False)  # asking changes nothing
    assert not ReplayGraph(episodes, GAMMA, history=1).varies(state("A"), 1)


def test_outcomes_by_hand():
    graph = ReplayGraph([episode("goal", "ABAC", [0, 0, 1], {2: "goal"}), episode("own", "AB", [0], {})], GAMMA)
    assert graph.outcomes(state("A")) == {(0, state("B")): 2, (1, None): 1}, "the goal ends its own episode"
    assert graph.outcomes(state("B")) == {(0, state("A")): 1}
    assert graph.outcomes(state("new")) == {}
