"""MAGELLAN (Gaven et al., 2025): draws goals whose predicted success rate changes, as learned from all goals."""

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from sacglam.config.kinds import GoalsConfig
from sacglam.goals import GoalSource, ProgressSource, noticeable
from sacglam.prompt import Prompt
from sacglam.types import Attempts, Classifiers, Episode, Query

_ATTEMPTS, _BATCH = 5_000, 256  # outcomes that competence is learned from, and outcomes per update
_PREDICTED, _TRUSTED = 500, 0.6  # predictions compared with their outcomes, and the lowest AUC to trust
_FEWEST = 10  # successes, and failures, among these: with fewer, chance often reaches that AUC
_IN_A_QUERY = 8  # goals


class MagellanConfig(GoalsConfig):
    """Goals are drawn in proportion to the change in their predicted success rate, learned from all goals' outcomes."""

    competence: ClassVar[str | None] = "sacglam.learner.competence:Competence"

    type: str = "magellan"

    @override
    def build(
        self,
        goals: Sequence[str],
        goal_type: Callable[[str], str],
        rng: np.random.Generator,
        prompt: Prompt,
        classifiers: Classifiers | None,
    ) -> GoalSource:
        return MagellanSource(goals, rng, goal_type, "goal", prompt, classifiers)


@dataclass(eq=False)
class MagellanSource(ProgressSource):
    """Draws goals in proportion to |C_now(g) - C_before(g)|, for a competence C learned alongside the agent.

    That is MAGELLAN (Gaven et al., 2025): see `sacglam.learner.competence`. Goals are drawn uniformly while C's latest
    predictions, each made before C learns from its outcome, cover few successes or failures, or their AUC is below 0.6.
    """

    at_first: ClassVar[Mapping[str, Any]] = {"episodes": 0, "attempts": (), "predicted": (), "seen": {}}

    prompt: Prompt
    classifiers: Classifiers | None
    _candidates: Sequence[str] = field(default=(), init=False)  # of all draws until the next `observe`
    _progress: npt.NDArray[np.float64] | None = field(default=None, init=False)  # of the candidates
    _seen: dict[str, tuple[int, float]] = field(default_factory=dict, init=False)  # by type: count, total progress

    @override
    def candidates(self) -> Sequence[str]:
        self._candidates = self._candidates or super().candidates()
        return self._candidates

    @override
    def progress(self, groups: Sequence[str]) -> npt.NDArray[np.float64]:
        if self._progress is None:
            self._progress = np.zeros(len(groups))
            if self._trusted:
                now, before = self._competence(groups)
                self._progress = noticeable(np.abs(now - before))
                for goal, each in zip(groups, self._progress.tolist(), strict=True):
                    count, total = self._seen.get(self._types[goal], (0, 0.0))
                    self._seen[self._types[goal]] = (count + 1, total + each)
        return self._progress

    @override
    def observe(self, episodes: Sequence[Episode]) -> None:
        self._candidates, self._progress = (), None
        if not episodes:
            return
        goals, outcomes = [episode.goal for episode in episodes], [episode.success for episode in episodes]
        self._episodes += len(episodes)
        self._predicted.extend(zip(self._competence(goals)[0].tolist(), outcomes, strict=True))
        self._attempts.extend(zip([self._place[goal] for goal in goals], outcomes, strict=True))
        recent, weights = list(self._attempts), np.arange(1, len(self._attempts) + 1)
        drawn = [recent[i] for i in self.rng.choice(len(recent), _BATCH, p=weights / weights.sum()).tolist()]
        attempts = Counter(self.goals[place] for place, _ in drawn)
        successes = Counter(self.goals[place] for place, success in drawn if success)
        lesson = [
            Attempts(query, tuple(attempts[goal] for goal in part), tuple(successes[goal] for goal in part))
            for part, query in self._queries(list(attempts))
        ]
        assert self.classifiers
        self.classifiers.fit("competence", lesson)

    def _competence(self, goals: Sequence[str]) -> npt.NDArray[np.float64]:
        """Competence now and before, (2, G)."""
        assert self.classifiers
        asked = {goal: place for place, goal in enumerate(dict.fromkeys(goals))}
        answers = self.classifiers.predict("competence", [query for _, query in self._queries(list(asked))])
        return np.concatenate(answers, axis=1)[:, [asked[goal] for goal in goals]].astype(np.float64)

    def _queries(self, goals: Sequence[str]) -> list[tuple[Sequence[str], Query]]:
        """Goals in small groups, each with its query: a pass costs more than in proportion to its query's length."""
        parts = [goals[start : start + _IN_A_QUERY] for start in range(0, len(goals), _IN_A_QUERY)]
        return [(part, self.prompt.judged("Goal:", part)) for part in parts]

    @property
    def _trusted(self) -> bool:
        successes = sum(success for _, success in self._predicted)
        enough = min(successes, len(self._predicted) - successes) >= _FEWEST
        return enough and area_under_curve(self._predicted) >= _TRUSTED

    @override
    def metrics(self) -> dict[str, float]:
        auc, seen, self._seen = area_under_curve(self._predicted), self._seen, {}
        known = {} if math.isnan(auc) else {"competence_auc": auc}
        progress = {f"progress/{kind}": total / count for kind, (count, total) in seen.items()}
        return {"competence_trusted": float(self._trusted), **known, **progress}

    @override
    def state(self) -> dict[str, Any]:
        learnt = {"attempts": [*self._attempts], "predicted": [*self._predicted], "seen": {**self._seen}}
        return {"episodes": self._episodes, **learnt}

    @override
    def load_state(self, state: Mapping[str, Any]) -> None:
        self._episodes = int(state["episodes"])
        self._place = {goal: place for place, goal in enumerate(self.goals)}
        self._attempts = deque[tuple[int, bool]](map(tuple, state["attempts"]), maxlen=_ATTEMPTS)
        self._predicted = deque[tuple[float, bool]](map(tuple, state["predicted"]), maxlen=_PREDICTED)
        self._seen = {kind: (int(count), float(total)) for kind, (count, total) in state["seen"].items()}


def area_under_curve(predicted: Sequence[tuple[float, bool]]) -> float:
    """P(a success was predicted higher than a failure), ties counting half; nan unless there are both."""
    won, lost = (np.array([each for each, success in predicted if success is which]) for which in (True, False))
    difference = np.sign(won[:, None] - lost)
    return float((difference.mean() + 1) / 2) if difference.size else math.nan
