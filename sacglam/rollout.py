"""Steps environments in lockstep: one scoring pass serves them all, and episodes are returned as they end."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sacglam.clock import PhaseClock
from sacglam.envs.base import TextEnv
from sacglam.envs.workers import call_all
from sacglam.errors import CheckpointError, DivergenceError, EnvironmentContractError
from sacglam.exploration import Exploration
from sacglam.goals import Start
from sacglam.policy import Policy
from sacglam.prompt import Prompt, query
from sacglam.replay.graph import Outcomes
from sacglam.replay.windows import window
from sacglam.scoring.base import Scorer, UniformScorer
from sacglam.types import Decision, Episode, LogPolicy, Observation, Query, RolloutBatch, Step, Window

_ROUNDING = 1e-2  # tolerance for probabilities adding up to 1, even in bfloat16


@dataclass
class _OpenEpisode:
    """An unfinished episode in one environment."""

    env: TextEnv
    start: Start
    first: Observation
    decisions: list[Decision] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    past: list[tuple[str, str]] = field(default_factory=list)  # as `Past`
    outcomes: defaultdict[Observation, Outcomes] = field(default_factory=lambda: defaultdict(Counter))  # of its states
    exploring: bool = False
    cut: int = 0  # steps already returned in earlier windows

    @property
    def observation(self) -> Observation:
        return self.steps[-1].observation if self.steps else self.first

    def take(self, decision: Decision, step: Step) -> None:
        seen = self.observation
        self.past.append((seen.text, seen.actions[decision.action]))
        self.outcomes[seen][decision.action, step.observation] += 1
        self.decisions.append(decision)
        self.steps.append(step)

    @property
    def over(self) -> bool:
        return bool(self.steps) and (self.steps[-1].terminated or self.steps[-1].truncated)

    def close(self) -> Episode:
        return Episode(self.start.goal, self.first, tuple(self.decisions), tuple(self.steps), self.start.seed)

    def window(self, history: int) -> Window:
        """The steps since the last window; the cost does not grow with the episode's length."""
        start, self.cut = self.cut, len(self.steps)
        first = self.steps[start - 1].observation if start else self.first
        decisions, steps = tuple(self.decisions[start:]), tuple(self.steps[start:])
        recent = Episode(self.start.goal, first, decisions, steps, self.start.seed)
        before = tuple(self.past[max(0, start - history) : start])
        return replace(window(recent, recent.goal, 0, len(steps), gamma=1.0), before=before)

    def query(self, prompt: Prompt) -> Query:
        """The prompt and actions of the current state."""
        return prompt(self.start.goal, self.observation, self.past)


@dataclass(eq=False)
class Rollout:
    """Plays episodes from `starts` in all environments at once; environments idle when the starts run out."""

    envs: Sequence[TextEnv]
    scorer: Scorer
    policy: Policy
    starts: Iterator[Start]
    clock: PhaseClock
    prompt: Prompt = query
    repeats: bool = True  # if false, open episodes cannot be replayed
    windows: bool = True  # whether `collect` also returns each interval's steps, for on-policy learning
    exploration: Exploration | None = None
    at_random: bool = field(default=False, init=False)  # play the random policy without scoring
    _open: list[_OpenEpisode] | None = field(default=None, init=False)  # none before the first `step` or `restore`

    def step(self) -> list[Episode]:
        """Take one step in every environment and return the episodes that ended."""
        return [opened.close() for opened in self._step()]

    def _step(self) -> list[_OpenEpisode]:
        if self._open is None:
            self._open = self._begin(self.envs)
        if not self._open:  # every start has been played
            return []
        with self.clock.phase("scoring"):
            policies, version = self._policies(self._open), self.scorer.version
        with self.clock.phase("environment"):
            policies = [self._explored(o, log_pi) for o, log_pi in zip(self._open, policies, strict=True)]
            actions = [self.policy(log_pi) for log_pi in policies]
            steps = call_all("step", [(o.env, [action]) for o, action in zip(self._open, actions, strict=True)])
            for opened, log_pi, action, step in zip(self._open, policies, actions, steps, strict=True):
                opened.take(Decision(action, float(log_pi[action]), version), step)
        ended = [opened for opened in self._open if opened.over]
        begun = iter(self._begin([opened.env for opened in ended]) if ended else ())
        following = [next(begun, None) if opened.over else opened for opened in self._open]
        self._open = [opened for opened in following if opened]
        return ended

    def collect(self, env_steps: int) -> RolloutBatch:
        """Take at least `env_steps` steps in total over all copies."""
        ended: list[_OpenEpisode] = []
        for _ in range(-(-env_steps // len(self.envs))):
            ended += self._step()
        played = [*ended, *(self._open or [])] if self.windows else []
        history = self.prompt.settings.history
        return RolloutBatch(
            episodes=tuple(opened.close() for opened in ended),
            windows=tuple(opened.window(history) for opened in played if len(opened.steps) > opened.cut),
        )

    def drain(self) -> Iterator[list[Episode]]:
        """Play every remaining start to its end; yields the episodes that ended at each step."""
        while self._open is None or self._open:
            yield self.step()

    def check_policy(self) -> None:
        """Score the open states once, so that a NaN policy raises its `DivergenceError` here."""
        if self._open:
            self._policies(self._open)

    def _policies(self, opened: Sequence[_OpenEpisode]) -> list[LogPolicy]:
        """The log-probabilities of the actions in each open episode, checked."""
        scorer = UniformScorer() if self.at_random else self.scorer
        policies = scorer.log_policy([o.query(self.prompt) for o in opened])
        for each, log_pi in zip(opened, policies, strict=True):
            total = np.exp(log_pi.astype(np.float64)).sum()
            if len(log_pi) != len(each.observation.actions) or not abs(total - 1) < _ROUNDING:
                raise DivergenceError(
                    f"expected probabilities of {len(each.observation.actions)} actions that add up to 1, got "
                    f"{len(log_pi)} that add up to {total}: the weights have diverged; start again with smaller "
                    "learning rates"
                )
        return policies

    def _explored(self, opened: _OpenEpisode, log_pi: LogPolicy) -> LogPolicy:
        """`log_pi` or, while the episode explores, a uniform policy over the actions to explore."""
        if (explore := self.exploration) is None:
            return log_pi
        goal, state = opened.start.goal, opened.observation
        others = [each.outcomes for each in self._open or () if each is not opened]
        if not (opened.exploring or explore.begins(goal, state, others)):
            return log_pi
        actions, found = explore.actions(goal, state, [*others, opened.outcomes])
        opened.exploring = not found
        uniform = np.full_like(log_pi, -np.inf)
        uniform[list(actions)] = -np.log(len(actions))
        return uniform

    def state(self) -> list[dict[str, Any]]:
        """Goal, seed and decisions of each open episode, enough to replay it; empty unless `repeats`."""
        return [
            {
                "goal": o.start.goal,
                "seed": o.start.seed,
                "scene": o.start.scene,
                "exploring": o.exploring,
                "decisions": [[d.action, d.log_prob, d.version] for d in o.decisions],
                "transcript": o.close().transcript(),
            }
            for o in (self._open or [] if self.repeats else [])
        ]

    def restore(self, state: Sequence[dict[str, Any]]) -> None:
        """Replay the open episodes of `state()`; the other environments begin new ones while starts remain.

        Raises:
            CheckpointError: there are more open episodes than environments.
            EnvironmentContractError: an environment is not reproducible given the same goal, seed and actions.
        """
        if not state:  # saved before the first step
            self._open = None
            return
        if len(state) > len(self.envs):
            raise CheckpointError(
                f"expected at most {len(self.envs)} open episodes, one for each environment, got {len(state)}; "
                f"resume with env.copies={len(state)}, as before"
            )
        replayed = [self._replay(env, saved) for env, saved in zip(self.envs, state, strict=False)]
        self._open = replayed + self._begin(self.envs[len(state) :])

    def _replay(self, env: TextEnv, saved: dict[str, Any]) -> _OpenEpisode:
        start = Start(saved["goal"], saved["seed"], saved["scene"])
        opened = _OpenEpisode(env, start, env.reset(start.scene or start.goal, start.seed))
        for action, log_prob, version in saved["decisions"]:
            if action < len(opened.observation.actions) and not opened.over:  # otherwise the transcript differs
                opened.take(Decision(action, float(log_prob), int(version)), env.step(action))
        opened.cut, opened.exploring = len(opened.steps), saved["exploring"]
        if opened.close().transcript() != saved["transcript"]:
            raise EnvironmentContractError(
                f"replaying an open episode (goal {saved['goal']!r}, seed {saved['seed']}) went differently: "
                "the environment does not repeat itself for the same goal, seed and actions, or its code has changed. "
                "Seed every random generator in reset, from its seed argument, and sort what comes from a set, "
                "whose order differs between processes; or train a new run with env.repeats=false, which can be "
                "resumed without its open episodes"
            )
        return opened

    def _begin(self, envs: Sequence[TextEnv]) -> list[_OpenEpisode]:
        """Begin an episode in each of `envs`, as long as there are starts left."""
        with self.clock.phase("goals"):
            begun = list(zip(envs, self.starts, strict=False))
        with self.clock.phase("environment"):
            observations = call_all("reset", [(env, [start.scene or start.goal, start.seed]) for env, start in begun])
        return [_OpenEpisode(env, start, seen) for (env, start), seen in zip(begun, observations, strict=True)]
