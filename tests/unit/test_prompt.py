"""The prompt, letter by letter: what the model was pre-trained on must not drift."""

from __future__ import annotations

from sacglam.prompt import query
from sacglam.types import Observation, Query


def test_the_prompt_by_hand() -> None:
    observation = Observation("You see: red cow\nInventory: empty", ("Grasp", "Go to red cow"))
    assert query("Grasp red cow", observation) == Query(
        prompt="Goal: Grasp red cow\nYou see: red cow\nInventory: empty\nAction:",
        actions=(" Grasp", " Go to red cow"),
    )


def test_the_goal_changes_the_prompt_and_not_the_actions() -> None:
    observation = Observation("text", ("a", "b"))
    one, other = query("x", observation), query("y", observation)
    assert one.prompt != other.prompt
    assert one.actions == other.actions
