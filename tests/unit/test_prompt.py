"""The prompt, letter by letter: what the model was pre-trained on must not drift."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacglam.clock import PhaseClock
from sacglam.config import load
from sacglam.config.sections import PromptConfig
from sacglam.envs import make
from sacglam.errors import ConfigError
from sacglam.goals import GoalSource
from sacglam.policy import SamplingPolicy
from sacglam.prompt import Prompt, query
from sacglam.replay.windows import hindsight_goals, last_step, window
from sacglam.rollout import Rollout
from sacglam.types import Observation, Query
from tests.unit.test_rollout import Scripted

LISTED = PromptConfig(
    template="Actions: {actions}\nGoal: {goal}\n{history}Now: {observation}\nDo:",
    history=2,
    step="{observation} -> {action}\n",
)
PAST = (("first", "a"), ("second", "b"), ("third {goal}", "c"))


def test_the_prompt_by_hand() -> None:
    observation = Observation("You see: red cow\nInventory: empty", ("Grasp", "Go to red cow"))
    assert query("Grasp red cow", observation) == Query(
        prompt="Goal: Grasp red cow\nYou see: red cow\nInventory: empty\nAction:",
        actions=(" Grasp", " Go to red cow"),
    )


def test_settings_by_hand() -> None:
    """A past as long as the settings ask for, a longer and a shorter one; braces in texts are texts."""
    prompt, observation = Prompt(LISTED), Observation("here", ("x", "y {z}"))
    expected = "Actions: x, y {z}\nGoal: g\nsecond -> b\nthird {goal} -> c\nNow: here\nDo:"
    assert prompt("g", observation, PAST) == Query(expected, (" x", " y {z}"))
    assert prompt("g", observation, PAST[1:]).prompt == expected
    assert prompt("g", observation, PAST[:1]).prompt == "Actions: x, y {z}\nGoal: g\nfirst -> a\nNow: here\nDo:"
    assert prompt("g", observation).prompt == "Actions: x, y {z}\nGoal: g\nNow: here\nDo:"


@pytest.mark.parametrize(
    ("settings", "before"),
    [
        (PromptConfig(), " "),
        (PromptConfig(template="{goal}\n{observation}"), " "),
        (PromptConfig(template="{goal} {observation}\nAction:\n"), ""),
        (PromptConfig(chat=True), ""),
    ],
)
def test_a_space_precedes_an_action_unless_the_prompt_ends_its_line(settings: PromptConfig, before: str) -> None:
    assert Prompt(settings)("g", Observation("o\n", ("x",))).actions == (f"{before}x",)


@pytest.mark.parametrize(
    ("settings", "before"), [({}, " "), ({"template": "{observation}{goal}\n"}, " "), ({"chat": True}, "")]
)
def test_a_space_precedes_a_goal_that_is_judged_since_the_prompt_is_always_the_same(
    settings: dict[str, bool | str], before: str
) -> None:
    assert Prompt(PromptConfig(**settings)).judged("Goal:", ["Grasp red cat"]).actions == (f"{before}Grasp red cat",)


def test_the_default_shows_no_history() -> None:
    observation = Observation("here", ("x",))
    assert query("g", observation, PAST) == query("g", observation)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["template='Goal: {goal} {obs}'"], r"prompt.template has an unknown field 'obs'; expected {actions}, {goal}"),
        (["template='{goal!r} {observation}'"], "unknown field 'goal'"),
        (["template='{goal.__class__} {observation}'"], "unknown field 'goal.__class__'"),
        (["template='{goal} {observation} {'"], "prompt.template is not a template: .*; write {{ and }} for braces"),
        (["template='{observation}'"], "prompt.template lacks {goal}, so the agent would not see it"),
        (["template='{goal} {actions}'"], "prompt.template lacks {observation}"),
        (["template='{goal} {observation}'", "history=3"], "no earlier step would show: expected {history}"),
        (["step='...'", "history=3"], "no earlier step would show"),
        (["step='{goal}'"], "prompt.step has an unknown field 'goal'; expected {action}, {observation}"),
        (["histroy=3"], "did you mean 'prompt.history'"),
    ],
)
def test_what_is_refused(values: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=re.sub(r"([{}])", r"\\\1", expected)):
        load(None, [f"prompt.{value}" for value in values])


def test_braces_can_be_written() -> None:
    settings = PromptConfig(template="{{goal}}: {goal}, {observation}")
    assert Prompt(settings)("g", Observation("o", ("a",))).prompt == "{goal}: g, o"


@settings(deadline=None, max_examples=20)
@given(length=st.integers(1, 4), history=st.integers(0, 3), seed=st.integers(0, 99))
def test_a_window_has_the_prompts_that_the_rollout_had_and_hindsight_changes_the_goal_alone(
    length: int, history: int, seed: int
) -> None:
    prompt = Prompt(LISTED.model_copy(update={"history": history}))
    env, scorer, rng = make("playground_simple"), Scripted(), np.random.default_rng(seed)
    starts = GoalSource(env.goals("train"), np.random.default_rng(seed))
    rollout = Rollout([env], scorer, SamplingPolicy(rng), starts, PhaseClock(), prompt)
    collected = [rollout.collect(5) for _ in range(6)]
    asked = [q for [q] in scorer.asked]
    parts = [w for batch in collected for w in batch.windows]
    assert [prompt.at(w, t) for w in parts for t in range(len(w))] == asked
    first = 0
    for episode in (e for batch in collected for e in batch.episodes):
        for goal in {episode.goal, *(g for t in range(len(episode.steps)) for g in hindsight_goals(episode, t))}:
            for start in range(last_step(episode, goal) + 1):
                drawn = window(episode, goal, start, length, 0.9, history)
                for t in range(len(drawn)):
                    had = asked[first + start + t]
                    renamed = had.prompt.replace(f"Goal: {episode.goal}\n", f"Goal: {goal}\n")
                    assert prompt.at(drawn, t) == Query(renamed, had.actions)
        first += len(episode.steps)


def test_a_restored_rollout_has_the_same_history() -> None:
    def rollout() -> Rollout:
        starts = GoalSource(("Grasp any cat",), np.random.default_rng(0))
        return Rollout([make("playground_simple")], Scripted(), lambda log_pi: 1, starts, PhaseClock(), Prompt(LISTED))

    original, restored = rollout(), rollout()
    original.collect(3)
    restored.restore(original.state())
    for each in (original, restored):
        each.collect(1)
    scorers = [each.scorer for each in (original, restored)]
    last, again = (scorer.asked[-1] for scorer in scorers if isinstance(scorer, Scripted))
    assert last == again
    assert last[0].prompt.count(" -> ") == 2
