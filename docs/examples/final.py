"""Hindsight's `final` strategy (Andrychowicz et al., 2017, Section 4.5): a way to sample replay in one file.

PYTHONPATH=. sacglam train --set replay.hindsight.type=docs.examples.final:Final
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from sacglam.config.kinds import Hindsight
from sacglam.config.section import Fraction
from sacglam.replay.buffer import Entry, ReplayBuffer
from sacglam.replay.windows import hindsight_goals


class Final(Hindsight):
    """Relabels a share of the drawn steps with the goal that their episodes achieved last."""

    copies: ClassVar[bool] = False  # steps are relabelled when they are drawn

    type: str = "docs.examples.final:Final"
    share: Fraction = 0.5
    """Share of relabelled steps among those whose episodes achieved another goal later."""

    def entries(self, buffer: ReplayBuffer, rng: np.random.Generator, size: int) -> Sequence[Entry]:
        """`size` steps, some of them relabelled."""
        drawn = [buffer[i] for i in rng.integers(len(buffer), size=size)]
        return [_final(entry) if rng.random() < self.share else entry for entry in drawn]


def _final(entry: Entry) -> Entry:
    """The same step on the way to the last other goal that its episode achieved, if any is still to come."""
    for t in reversed(range(entry.start, len(entry.episode.steps))):
        if goals := hindsight_goals(entry.episode, t):
            return Entry(entry.episode, goals[-1], entry.start)
    return entry
