"""The only place where an observation and a goal become a prompt."""

from sacglam.types import Observation, Query


def query(goal: str, observation: Observation) -> Query:
    """The prompt of `observation` under `goal`, and its actions with the leading space for tokenisation."""
    return Query(
        prompt=f"Goal: {goal}\n{observation.text}\nAction:",
        actions=tuple(f" {action}" for action in observation.actions),
    )
