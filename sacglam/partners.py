"""Partners, which judge what episodes achieved. Their verdicts are stored with the episodes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import model_validator
from typing_extensions import override

from sacglam.clock import PhaseClock
from sacglam.config.kinds import PartnerConfig
from sacglam.config.section import Fraction, OpenFraction, Positive
from sacglam.envs.conversion import Unmet, shown, texts
from sacglam.errors import ConfigError
from sacglam.goals import GoalSource
from sacglam.imagination import Imagination, ImaginedGoals
from sacglam.prompt import Prompt
from sacglam.types import Classifiers, Episode, Example, Step

Verdict = Sequence[Sequence[str]]
"""The goals that each step of an episode achieved."""
CANDIDATES = 256  # goals that each step is judged against: enough to find its few achievements, few enough to ask about
_UPDATES = 300  # most gradient steps that train a judge once its budget is spent; never more than the budget has steps


@dataclass(eq=False)
class Partner:
    """Judges what episodes achieved, and counts where it disagrees with the environment. Subclasses add `verdicts`."""

    rng: np.random.Generator
    clock: PhaseClock
    known: dict[str, None] = field(default_factory=dict, init=False)
    """The goals pursued or named so far, in order of appearance."""
    _predicted: int = field(default=0, init=False)
    _true_positives: int = field(default=0, init=False)
    _actual: int = field(default=0, init=False)

    def verdicts(self, episodes: Sequence[Episode]) -> Sequence[Verdict]:
        """What each step of each episode achieved; the episodes come with the environment's own verdicts."""
        raise NotImplementedError

    def source(self, given: GoalSource, goal_type: Callable[[str], str]) -> GoalSource:
        """The source of goals for episodes: `given`, unless this partner can judge other goals too."""
        return given

    def describe(self, episodes: Sequence[Episode]) -> Sequence[Episode]:
        """The episodes with this partner's verdicts instead of the environment's: see `described`."""
        with self.clock.phase("partner"):
            self.known |= dict.fromkeys(episode.goal for episode in episodes)
            verdicts = self._checked(self.verdicts(episodes), episodes)
            seen = [described(e, verdict) for e, verdict in zip(episodes, verdicts, strict=True)]
            for episode, judged in zip(episodes, seen, strict=True):
                true, said = _achievements(episode), _achievements(judged)
                self.known |= dict.fromkeys(goal for goal, _ in said)
                self._predicted += len(said)
                self._true_positives += len(true.keys() & said.keys())
                self._actual += len(true)
        return seen

    def _checked(self, verdicts: Sequence[Verdict], episodes: Sequence[Episode]) -> Sequence[Verdict]:
        """The verdicts that a partner, perhaps the user's own, returned, as tuples of plain texts."""
        at, plain, cause = f"partner.type: {type(self).__name__}.verdicts", list[Verdict](), None
        try:
            plain = [[texts(goals, "the goals that a step achieved") for goals in verdict] for verdict in verdicts]
        except Unmet as unmet:
            raise ConfigError(f"{at}: expected {unmet}") from None
        except TypeError as error:  # such as None
            cause = error
        if cause or [len(verdict) for verdict in plain] != [len(episode.steps) for episode in episodes]:
            raise ConfigError(f"{at}: expected goals for each step of each episode, got {shown(verdicts)}") from cause
        return plain

    def metrics(self) -> dict[str, float]:
        """Precision and recall of the verdicts since the last call, where they are defined."""
        precision = {"partner_precision": self._true_positives / self._predicted} if self._predicted else {}
        recall = {"partner_recall": self._true_positives / self._actual} if self._actual else {}
        self._predicted = self._true_positives = self._actual = 0
        return precision | recall

    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint needs, as JSON values."""
        counts = [self._predicted, self._true_positives, self._actual]
        return {"rng": self.rng.bit_generator.state, "known": list(self.known), "counts": counts}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state()` returned."""
        self.rng.bit_generator.state = state["rng"]
        self.known = dict.fromkeys(state["known"])
        self._predicted, self._true_positives, self._actual = state["counts"]


def described(episode: Episode, verdict: Verdict) -> Episode:
    """`episode` with the achievements in `verdict`, each goal once.

    A step whose verdict names the episode's own goal is rewarded and terminates the episode. A step that only the
    environment rewards (for the scene's goal, if the episode's is imagined) loses the reward and truncates the episode.
    """
    said, steps = set[str](), list[Step]()
    for step, goals in zip(episode.steps, verdict, strict=True):
        named = tuple(goal for goal in dict.fromkeys(goals) if goal not in said)
        said.update(named)
        seen = replace(step, achieved=named)
        if episode.goal in named:
            seen = replace(seen, reward=1.0, terminated=True, truncated=False)
        elif step.reward:
            seen = replace(seen, reward=0.0, terminated=False, truncated=True)
        steps.append(seen)
    return replace(episode, steps=tuple(steps))


def _achievements(episode: Episode) -> dict[tuple[str, int], None]:
    """The goals that the episode achieved, each with its step."""
    return {(goal, t): None for t, step in enumerate(episode.steps) for goal in step.achieved}


class EnvironmentConfig(PartnerConfig):
    """The environment's own verdicts (the default)."""

    type: str = "environment"

    @override
    def build(self, rng: np.random.Generator, clock: PhaseClock, prompt: Prompt, classifiers: Classifiers) -> Partner:
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


class ModelPartnerConfig(PartnerConfig):
    """A partner that asks a model, for some of the known goals, whether a step achieved them."""

    threshold: OpenFraction = 0.9
    """Lowest probability at which a goal counts as achieved."""
    imagine: Fraction = 0.0
    """Share of the goals asked about that are imagined (more while few are known): never named, but made from known
    ones by substitution."""
    pursue: Fraction = 0.0
    """Share of the episodes that pursue an imagined goal which the partner has since named as achieved; only the
    partner judges these episodes."""

    @property
    @override
    def imagines(self) -> str:
        return "pursuing" if self.pursue else "relabelling" if self.imagine else ""

    @model_validator(mode="after")
    def _imagined(self) -> Self:
        if self.pursue and not self.imagine:
            raise ValueError("partner.pursue needs goals to pursue: set partner.imagine, too")
        return self


class ScoredConfig(ModelPartnerConfig):
    """Asks the untrained language model in plain words whether a goal was achieved; for instruction-tuned models."""

    judge: ClassVar[str | None] = "sacglam.learner.judge:Scored"

    type: str = "scored"

    @override
    def build(self, rng: np.random.Generator, clock: PhaseClock, prompt: Prompt, classifiers: Classifiers) -> Partner:
        return ModelPartner(rng, clock, self, prompt, classifiers)


@dataclass(eq=False)
class ModelPartner(Partner):
    """Asks a model for its verdicts."""

    settings: ModelPartnerConfig
    prompt: Prompt
    classifiers: Classifiers
    _imagination: Imagination = field(default_factory=Imagination, init=False)

    @override
    def source(self, given: GoalSource, goal_type: Callable[[str], str]) -> GoalSource:
        share = self.settings.pursue
        return ImaginedGoals(given.goals, given.rng, given, self.pursuable, goal_type, share) if share else given

    def pursuable(self) -> Mapping[str, None]:
        """The goals that episodes may pursue, among them the training goals."""
        return self.known

    @override
    def verdicts(self, episodes: Sequence[Episode]) -> Sequence[Verdict]:
        asked = [self._candidates(episode.goal) for episode in episodes]
        queries = [
            self.prompt.judged(self.prompt.transition(episode, t), goals)
            for episode, goals in zip(episodes, asked, strict=True)
            for t in range(len(episode.steps))
        ]
        judged, least = iter(self.classifiers.predict("judge", queries)), self.settings.threshold
        return [
            [[goal for goal, sure in zip(goals, next(judged).tolist(), strict=True) if sure >= least] for _ in e.steps]
            for e, goals in zip(episodes, asked, strict=True)
        ]

    def _candidates(self, own: str) -> Sequence[str]:
        most, others = CANDIDATES - 1, [goal for goal in self.known if goal != own]
        imagined = self._imagination.draw(self.known, int(self.settings.imagine * most), self.rng)
        if len(others) > (left := most - len(imagined)):
            others = [others[i] for i in sorted(self.rng.choice(len(others), left, replace=False))]
        return [own, *others, *imagined]


class JudgeConfig(ModelPartnerConfig):
    """A judge on the agent's language model, trained on the environment's first verdicts, which it then replaces."""

    judge: ClassVar[str | None] = "sacglam.learner.judge:Judge"

    type: str = "judge"
    budget: Positive = 2_000
    """Steps that the environment labels, more until one achieves something; then the judge learns and takes over."""

    @property
    @override
    def needs_steps(self) -> int:
        return self.budget

    @override
    def build(self, rng: np.random.Generator, clock: PhaseClock, prompt: Prompt, classifiers: Classifiers) -> Partner:
        return LearnedJudge(rng, clock, self, prompt, classifiers)


@dataclass(eq=False)
class LearnedJudge(ModelPartner):
    """Accepts the environment's verdicts until the budget is spent, and some goal achieved; then asks its model."""

    settings: JudgeConfig
    _labelled: int = field(default=0, init=False)  # steps
    _examples: list[Example] = field(default_factory=list, init=False)  # empty once the judge is trained

    @property
    def _trained(self) -> bool:
        return self._labelled >= self.settings.budget and not self._examples

    @override
    def pursuable(self) -> Mapping[str, None]:
        return super().pursuable() if self._trained else {}

    @override
    def describe(self, episodes: Sequence[Episode]) -> Sequence[Episode]:
        if self._trained:
            return super().describe(episodes)
        with self.clock.phase("partner"):
            for episode in episodes:
                self._label(episode)
            if self._labelled >= self.settings.budget and any(example.achieved for example in self._examples):
                seed, updates = int(self.rng.integers(2**31)), min(_UPDATES, self.settings.budget)
                self.classifiers.fit("judge", self._examples, [*self.known], updates, seed)
                self._examples = []
        return episodes

    def _label(self, episode: Episode) -> None:
        self.known[episode.goal] = None
        earlier: tuple[str, ...] = ()
        for t, step in enumerate(episode.steps):
            self._examples.append(Example(self.prompt.transition(episode, t), step.achieved, earlier))
            self.known |= dict.fromkeys(step.achieved)
            earlier += step.achieved
        self._labelled += len(episode.steps)

    @override
    def state(self) -> dict[str, Any]:
        return {**super().state(), "labelled": self._labelled, "examples": [astuple(each) for each in self._examples]}

    @override
    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._labelled = state["labelled"]
        self._examples = [Example(text, tuple(now), tuple(earlier)) for text, now, earlier in state["examples"]]
