"""The partners: who says what an episode achieved. What they say is stored with the episode."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from sacglam.clock import PhaseClock
from sacglam.config.partner import PartnerConfig
from sacglam.config.section import Fraction
from sacglam.types import Episode, Step

Verdict = Sequence[Sequence[str]]
"""The goals that each step of an episode achieved."""


@dataclass(eq=False)
class Partner:
    """Says what episodes achieved, and counts where it disagrees with the environment; a subclass has `verdicts`."""

    rng: np.random.Generator
    clock: PhaseClock
    known: dict[str, None] = field(default_factory=dict, init=False)
    """The goals that were pursued or named so far, in that order."""
    _said: int = field(default=0, init=False)
    _right: int = field(default=0, init=False)
    _achieved: int = field(default=0, init=False)

    def verdicts(self, episodes: Sequence[Episode]) -> Sequence[Verdict]:
        """What each step of each episode achieved; the episodes hold what the environment says."""
        raise NotImplementedError

    def describe(self, episodes: Sequence[Episode]) -> Sequence[Episode]:
        """The episodes as this partner saw them: see `described`."""
        with self.clock.phase("partner"):
            self.known |= dict.fromkeys(episode.goal for episode in episodes)
            seen = [described(e, verdict) for e, verdict in zip(episodes, self.verdicts(episodes), strict=True)]
            for episode, judged in zip(episodes, seen, strict=True):
                true, said = _achievements(episode), _achievements(judged)
                self.known |= dict.fromkeys(goal for goal, _ in said)
                self._said += len(said)
                self._right += len(true.keys() & said.keys())
                self._achieved += len(true)
        return seen

    def metrics(self) -> dict[str, float]:
        """Precision and recall of what was said since the last call, where they are defined."""
        precision = {"partner_precision": self._right / self._said} if self._said else {}
        recall = {"partner_recall": self._right / self._achieved} if self._achieved else {}
        self._said = self._right = self._achieved = 0
        return precision | recall

    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint needs, as JSON values."""
        counts = [self._said, self._right, self._achieved]
        return {"rng": self.rng.bit_generator.state, "known": list(self.known), "counts": counts}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state()` returned."""
        self.rng.bit_generator.state = state["rng"]
        self.known = dict.fromkeys(state["known"])
        self._said, self._right, self._achieved = state["counts"]


def described(episode: Episode, verdict: Verdict) -> Episode:
    """`episode`, having achieved what `verdict` says, each goal once.

    Its own goal, once named, is rewarded and ends it. If the environment ended it there and the partner does not
    agree, it was cut short: unrewarded, and truncated where the last state offers actions.
    """
    said, steps = set[str](), list[Step]()
    for step, goals in zip(episode.steps, verdict, strict=True):
        named = tuple(goal for goal in dict.fromkeys(goals) if goal not in said)
        said.update(named)
        seen = replace(step, achieved=named)
        if episode.goal in named and episode.goal not in step.achieved:
            seen = replace(seen, reward=1.0, terminated=True, truncated=False)
        elif episode.goal in step.achieved and episode.goal not in named:
            goes_on = bool(step.observation.actions)
            seen = replace(seen, reward=0.0, terminated=not goes_on, truncated=goes_on)
        steps.append(seen)
    return replace(episode, steps=tuple(steps))


def _achievements(episode: Episode) -> dict[tuple[str, int], None]:
    """The goals that the episode achieved, each with its step."""
    return {(goal, t): None for t, step in enumerate(episode.steps) for goal in step.achieved}


class EnvironmentConfig(PartnerConfig):
    """The environment itself."""

    needs_whole_episodes: ClassVar[bool] = False

    type: str = "environment"

    @override
    def build(self, rng: np.random.Generator, clock: PhaseClock) -> Partner:
        return Environment(rng, clock)


class Environment(Partner):
    """The environment itself, which is always right; nothing is counted."""

    @override
    def describe(self, episodes: Sequence[Episode]) -> Sequence[Episode]:
        return episodes

    @override
    def state(self) -> dict[str, Any]:
        return {}

    @override
    def load_state(self, state: dict[str, Any]) -> None:
        return


class NoisyConfig(PartnerConfig):
    """The environment, with mistakes at given rates, to study what hindsight can bear."""

    type: str = "noisy"
    false_positives: Fraction = 0.0
    """Share of the steps at which it also names a known goal that was not achieved."""
    false_negatives: Fraction = 0.0
    """Share of the achieved goals that it does not name."""

    @override
    def build(self, rng: np.random.Generator, clock: PhaseClock) -> Partner:
        return Noisy(rng, clock, self)


@dataclass(eq=False)
class Noisy(Partner):
    """The environment with mistakes."""

    settings: NoisyConfig

    @override
    def verdicts(self, episodes: Sequence[Episode]) -> Sequence[Verdict]:
        return [[self._named(step) for step in episode.steps] for episode in episodes]

    def _named(self, step: Step) -> list[str]:
        named = [goal for goal in step.achieved if self.rng.random() >= self.settings.false_negatives]
        if self.rng.random() < self.settings.false_positives:
            others = [goal for goal in self.known if goal not in step.achieved]
            named += [others[self.rng.integers(len(others))]] if others else []
        return named
