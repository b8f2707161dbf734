"""A way of relabelling that does not come with sacglam, found by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest

from docs.examples.final import Final
from sacglam.config import parse
from sacglam.config.kinds import Hindsight
from sacglam.config.section import Fraction
from sacglam.errors import ConfigError, UntrustedError
from sacglam.replay.buffer import Entry, ReplayBuffer
from sacglam.types import Decision, Episode, Observation, Step

NAME = f"{__name__}:Newest"


class Newest(Hindsight):
    """Always the entry that was added last."""

    copies: ClassVar[bool] = False

    type: str = NAME
    share: Fraction = 0.25

    def entries(self, buffer: ReplayBuffer, rng: np.random.Generator, size: int) -> Sequence[Entry]:
        return [buffer[len(buffer) - 1]] * size


def test_it_draws_what_it_says() -> None:
    config = parse({"replay": {"hindsight": {"type": NAME, "share": 0.5}}})
    assert config.replay.hindsight == Newest(share=0.5)
    assert parse(config.model_dump()) == config
    buffer = ReplayBuffer(config.replay, lambda goal: "any", {"any": 1.0})
    state = Observation("state", ("x",))
    steps = tuple(Step(state, 0.0, ("b",), False, t == 2) for t in range(3))
    episode = Episode("a", state, tuple(Decision(0, 0.0, 0) for _ in steps), steps, seed=0)
    buffer.add(episode)
    assert buffer.hindsight.entries(buffer, np.random.default_rng(0), 2) == [Entry(episode, "a", 2)] * 2


def test_its_settings_are_checked_by_name() -> None:
    with pytest.raises(ConfigError, match=r"replay\.hindsight\.share: Input should be less than or equal to 1"):
        parse({"replay": {"hindsight": {"type": NAME, "share": 2}}})
    with pytest.raises(
        ConfigError, match=r"unknown setting 'replay\.hindsight\.shar'; did you mean 'replay\.hindsight\.share'"
    ):
        parse({"replay": {"hindsight": {"type": NAME, "shar": 2}}})
    with pytest.raises(UntrustedError, match="--trust"):
        parse({"replay": {"hindsight": {"type": NAME}}}, trusted=False)


def test_the_example_relabels_with_what_was_achieved_last() -> None:
    """The episode achieves `b` at step 0, `d` and `c` at step 1; its own goal is `a`."""
    state = Observation("state", ("x",))
    steps = tuple(Step(state, 0.0, achieved, False, t == 2) for t, achieved in enumerate([("b",), ("d", "c"), ()]))
    episode = Episode("a", state, tuple(Decision(0, 0.0, 0) for _ in steps), steps, seed=0)
    config = parse({"replay": {"hindsight": {"type": "docs.examples.final:Final", "share": 1.0}}})
    buffer = ReplayBuffer(config.replay, lambda goal: "any", {"any": 1.0})
    buffer.add(episode)
    drawn = Final(share=1.0).entries(buffer, np.random.default_rng(0), 50)
    assert {(entry.start, entry.goal) for entry in drawn} == {(0, "c"), (1, "c"), (2, "a")}
    assert {entry.goal for entry in Final(share=0.0).entries(buffer, np.random.default_rng(0), 50)} == {"a"}
