"""The environment with mistakes, to study how many hindsight tolerates: a partner of one's own in one file.

PYTHONPATH=. sacglam train docs/examples/noisy.yaml
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sacglam.clock import PhaseClock
from sacglam.config.kinds import PartnerConfig
from sacglam.config.section import Fraction
from sacglam.goals import draw
from sacglam.partners import Partner, Verdict
from sacglam.prompt import Prompt
from sacglam.types import Classifiers, Episode, Step


class NoisyConfig(PartnerConfig):
    """How often it is wrong."""

    type: str = "docs.examples.noisy:NoisyConfig"
    false_positives: Fraction = 0.0
    """Share of the steps at which it names a known goal that was not achieved."""
    false_negatives: Fraction = 0.0
    """Share of the achieved goals that it does not name."""

    def build(self, rng: np.random.Generator, clock: PhaseClock, prompt: Prompt, classifiers: Classifiers) -> Partner:
        """The partner with these rates."""
        return Noisy(rng, clock, self)


@dataclass(eq=False)
class Noisy(Partner):
    """The environment with mistakes."""

    settings: NoisyConfig

    def verdicts(self, episodes: Sequence[Episode]) -> Sequence[Verdict]:
        """The environment's verdicts, some left out and some added."""
        return [[self._named(step) for step in episode.steps] for episode in episodes]

    def _named(self, step: Step) -> list[str]:
        named = [goal for goal in step.achieved if self.rng.random() >= self.settings.false_negatives]
        if self.rng.random() < self.settings.false_positives:
            others = [goal for goal in self.known if goal not in step.achieved]
            named += [draw(self.rng, others)] if others else []
        return named
