"""The protocol of an environment."""

from collections.abc import Sequence
from typing import Literal, Protocol

from sacglam.types import Observation, Step

Split = Literal["train", "heldout"]


class TextEnv(Protocol):
    """A goal-conditioned text environment that plays one episode at a time.

    Contract: an episode is a function of `(goal, seed, actions)` and of nothing else, so that a checkpoint can store
    an open episode as its actions and replay it. Every state offers at least one action, and its actions have
    distinct texts. `CheckedEnv` holds an environment to this, and refuses steps outside of an episode and actions that
    the state does not offer.
    """

    def goals(self, split: Split) -> Sequence[str]:
        """The training or the held-out goals, in a fixed order; `heldout` may be empty."""

    def goal_type(self, goal: str) -> str:
        """The kind of `goal`, by which success is reported, e.g. `grasp`."""

    def reset(self, goal: str, seed: int) -> Observation:
        """Start the episode given by `goal` and `seed`."""

    def step(self, action: int) -> Step:
        """Take the action with this index. Reward and `achieved` must agree on the episode's goal."""

    def optimal_length(self) -> int | None:
        """Fewest steps from here to the episode's goal; None without a planner."""


class ExpertEnv(TextEnv, Protocol):
    """An environment that also knows what to do, for demonstrations (`sacglam collect`)."""

    def expert(self) -> int | None:
        """The index of an action that is good in the present state; None if none is known."""
