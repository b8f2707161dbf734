"""The judge's model: what it learns from, that it learns, and what it leaves alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sacglam.errors import CheckpointError, DivergenceError
from sacglam.learner.judge import QUESTIONS, Judge, Scored, _batches, _others, _words
from sacglam.learner.learner import Learner
from sacglam.prompt import query
from sacglam.types import Example, Query
from tests.unit.learner.test_learner import flat, make_learner, windows

COLOURS = ("red", "blue", "green")
GOALS = [f"Grasp {colour} cat" for colour in COLOURS]
EXAMPLES = [
    Example(f"You are on: {colour} cat\nAction: {action}\nInventory: {held}\nGoal:", achieved, ())
    for colour in COLOURS
    for action, held, achieved in [
        ("Grasp", f"{colour} cat", (f"Grasp {colour} cat",)),
        ("Go to water", "empty", ()),
    ]
]
QUERIES = [query.judged(example.transition, GOALS) for example in EXAMPLES]


def make(*overrides: str) -> tuple[Learner, Judge]:
    learner = make_learner("partner=judge", "critic.score_weight=0.2", *overrides)
    judge = learner.classifiers["judge"]
    assert isinstance(judge, Judge)
    return learner, judge


def test_a_judge_learns_which_transition_achieves_which_goal() -> None:
    learner, _ = make("algo.critic_lr=3e-3")
    learner.fit("judge", EXAMPLES, GOALS, 100, 0)
    for example, row in zip(EXAMPLES, learner.predict(QUERIES, "judge"), strict=True):
        assert [goal for goal, sure in zip(GOALS, row, strict=True) if sure > 0.5] == [*example.achieved]
        assert row.dtype == np.float32


def test_a_verdict_does_not_depend_on_the_other_goals_asked() -> None:
    learner, judge = make("algo.critic_lr=3e-3")
    learner.fit("judge", EXAMPLES, GOALS, 5, 0)
    [together], [alone] = (judge.predict([query.judged(EXAMPLES[0].transition, goals)]) for goals in (GOALS, GOALS[:1]))
    assert together[0] == pytest.approx(alone[0], abs=1e-6)


def test_many_goals_are_asked_about_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, judge = make("algo.critic_lr=3e-3")
    learner.fit("judge", EXAMPLES, GOALS, 5, 0)
    whole = judge.predict([*QUERIES, query.judged(EXAMPLES[0].transition, GOALS[:1])])
    monkeypatch.setattr("sacglam.learner.classifier._GOALS", 2)
    parts = judge.predict([*QUERIES, query.judged(EXAMPLES[0].transition, GOALS[:1])])
    assert [len(each) for each in parts] == [3] * 6 + [1]
    assert np.concatenate(parts) == pytest.approx(np.concatenate(whole), abs=1e-6)


def test_a_judge_that_has_diverged_says_so() -> None:
    _, judge = make()
    judge.parameters["head.critics.0.2.bias"].data.fill_(math.nan)
    with pytest.raises(DivergenceError, match="the judge model has diverged"):
        judge.predict(QUERIES)


def test_its_loss_is_the_cross_entropy_summed_over_goals_that_exist() -> None:
    _, judge = make()
    rows = [(EXAMPLES[0], [GOALS[1], GOALS[2]]), (EXAMPLES[1], [GOALS[0]])]
    first, second = judge.predict(
        [query.judged(EXAMPLES[0].transition, GOALS), query.judged(EXAMPLES[1].transition, GOALS[:1])]
    )
    expected = -(math.log(first[0]) + math.log(1 - first[1]) + math.log(1 - first[2]) + math.log(1 - second[0])) / 2
    assert judge.loss(rows).item() == pytest.approx(expected, rel=1e-4)


def test_agent_and_judge_leave_each_other_alone() -> None:
    (learner, judge), (other, _) = make(), make()
    agent, own = flat(learner, ""), {name: tensor for name, tensor in judge.state().items()}
    learner.fit("judge", EXAMPLES, GOALS, 2, 0)
    assert torch.equal(flat(learner, ""), agent)
    assert all(not torch.equal(judge.state()[name], tensor) for name, tensor in own.items() if "score" not in name)
    taught = judge.state()
    assert learner.learn([windows()]).metrics == other.learn([windows()]).metrics
    assert all(torch.equal(judge.state()[name], tensor) for name, tensor in taught.items())


def test_a_taught_judge_is_in_the_learners_state() -> None:
    learner, judge = make()
    learner.fit("judge", EXAMPLES, GOALS, 2, 0)
    state = learner.state()
    other, _ = make("seed=1")
    assert not np.array_equal(other.predict(QUERIES, "judge"), learner.predict(QUERIES, "judge"))
    other.load_state(*state)
    assert np.array_equal(other.predict(QUERIES, "judge"), learner.predict(QUERIES, "judge"))
    with pytest.raises(CheckpointError, match=r"head\."):
        judge.load_state({})


def test_ranks_add_their_gradients_and_share_the_queries() -> None:
    learner, judge = make()
    batch = [(example, [GOALS[0]]) for example in EXAMPLES if not example.achieved]
    judge.add_gradient(batch, judge.loss)
    whole = {name: each.grad.clone() for name, each in judge.parameters.items() if each.grad is not None}
    backend = judge._backend
    backend.world = 2
    sent: list[torch.Tensor] = []
    backend.all_reduce_sum = lambda values: (sent.append(values), sum(sent))[1]  # type: ignore[method-assign]
    for backend.rank in range(2):
        for parameter in judge.parameters.values():
            parameter.grad = None
        judge.add_gradient(batch, judge.loss)
    for name, gradient in whole.items():
        assert torch.allclose(judge.parameters[name].grad, gradient, atol=1e-6), name
    assert len(learner.predict(QUERIES, "judge")) == 3


def test_negatives_are_goals_not_achieved_and_half_of_them_near() -> None:
    rng = np.random.default_rng(0)
    example = Example(
        "You are on: red cat\nAction: Grasp\nInventory: red cat\nGoal:", ("Grasp red cat",), ("Grasp any cat",)
    )
    goals = [f"Grow {colour} {kind}" for colour in ("a", "b", "c", "d") for kind in map(str, range(100))]
    words = {goal: _words(goal) for goal in (*goals, "Grasp red cat", "Grasp any cat", "Grasp red dog")}
    drawn = [goal for _ in range(100) for goal in _others(example, words, rng)]
    assert not {"Grasp red cat", "Grasp any cat"} & {*drawn}
    # Near in most pools of 256 of the 401 others, and then among 32 of which 12 are drawn; else by chance.
    assert drawn.count("Grasp red dog") > 3 * len(drawn) / 401


def test_half_of_a_batch_achieved_something() -> None:
    examples = [*EXAMPLES[:1], *[EXAMPLES[1]] * 99]
    batch = next(_batches(examples, GOALS, np.random.default_rng(0)))
    assert 8 <= sum(bool(example.achieved) for example, _ in batch) <= 10
    # Where nothing was achieved at all there is still something to learn.
    assert next(_batches(examples[1:], GOALS, np.random.default_rng(0)))


def test_a_scored_judge_compares_yes_and_no_as_the_untrained_model_scores_them() -> None:
    learner = make_learner("partner=scored")
    scored = learner.classifiers["judge"]
    assert isinstance(scored, Scored)
    before = scored.predict(QUERIES)
    for each, row in zip(QUERIES[:2], before, strict=False):
        for goal, sure in zip(each.actions, row.tolist(), strict=True):
            asked = [Query(each.prompt, tuple(f"{goal}{q} {answer}" for answer in ("yes", "no"))) for q in QUESTIONS]
            yes = [math.exp(log_pi[0]) for log_pi in learner.score(asked)]  # of two actions, the policy is P(yes)
            assert sure == pytest.approx(min(yes), rel=1e-4)
    learner.learn([windows()], None)
    assert all(np.allclose(row, again) for row, again in zip(before, scored.predict(QUERIES), strict=True))
    assert scored.state() == {}
