"""Plays fresh episodes outside training: to evaluate a policy, and as samples to look at."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Any

import numpy as np
import numpy.typing as npt

from sacglam.build import Parts
from sacglam.clock import PhaseClock
from sacglam.collector import build_env
from sacglam.config import Config
from sacglam.envs import Split, TextEnv
from sacglam.envs.base import SPLITS
from sacglam.errors import ConfigError
from sacglam.goals import GoalSource
from sacglam.policy import Policy, SamplingPolicy, greedy
from sacglam.prompt import Prompt, query
from sacglam.rollout import Rollout
from sacglam.runs.directory import EVALUATED_RETURN
from sacglam.runs.display import Display
from sacglam.scoring.base import Scorer, UniformScorer
from sacglam.types import Episode, Evaluation, LogPolicy

SAMPLES = 4
"""Episodes per line of samples.jsonl."""
SAMPLES_STEPS = 1_600  # environment steps between these lines: enough to make the cost of the samples small
EVALUATIONS_AFTER: Mapping[str, tuple[str, Split]] = {
    "train": ("evaluating after", "train"),
    "sampled": ("evaluating sampled actions", "train"),
    "heldout": ("evaluating held-out goals", "heldout"),
}
"""Evaluations of the trained policy: name -> (text for the display, split); skipped if the split has no goals."""
_COPIES = 64
_DIGITS = 5  # of probabilities and Q values in samples
# Random streams: of episodes (the same before and after a run, others during it) and, the last, of sampled actions.
_FINAL, _HELDOUT, _INTERIM, _SAMPLES, _SAMPLED = 0xF17A1, 0x4E1D0, 0x17E21, 0x5A3B1, 0x5A3D


def evaluate(
    make_env: Callable[[], TextEnv],
    scorer: Scorer,
    policy: Policy,
    *,
    split: Split = "train",
    episodes: int,
    rng: np.random.Generator,
    progress: Callable[[int], None] = lambda done: None,
    prompt: Prompt = query,
    plan: bool = True,
) -> Evaluation:
    """Play `episodes` fresh episodes with goals drawn uniformly from `split`, or from its tasks if there are any.

    `progress` receives the number of finished episodes. `prompt` must be the one the policy was trained with. Measuring
    SPL takes a `reset` and a call of the planner for each success or, if all fail, until one has a plan. If `plan` is
    false, SPL is None: in an environment that does not repeat itself, it would be measured from other starts.

    Raises:
        ConfigError: the environment has no goals in this split.
    """
    env = make_env()
    goals = env.tasks() if split == "train" else env.goals(split)
    if not goals:
        raise ConfigError(f"this environment has no {SPLITS[split]} goals to evaluate on; use --goals train")
    starts = GoalSource(goals, rng)
    fixed = [next(starts) for _ in range(episodes)]
    copies = [make_env() for _ in range(min(_COPIES, episodes))]
    played: list[Episode] = []
    for ended in Rollout(copies, scorer, policy, iter(fixed), PhaseClock(), prompt).drain():
        played += ended
        progress(len(played))
    by_type = defaultdict(list)
    for episode in played:
        by_type[env.goal_type(episode.goal)].append(episode.success)
        by_type["overall"].append(episode.success)
    returns = [episode.return_ for episode in played]
    return Evaluation(
        success={name: float(np.mean(by_type[name])) for name in ["overall", *sorted(by_type.keys() - {"overall"})]},
        spl=_spl(env, played) if plan else None,
        episodes=len(played),
        mean_return=float(np.mean(returns)),
        return_error=stdev(returns) / math.sqrt(len(returns)) if len(returns) > 1 else None,
        repeated=_repeated([episode for episode in played if not episode.success]),
    )


def _repeated(episodes: Sequence[Episode]) -> tuple[float, str]:
    steps, again = 0, Counter[str]()
    for episode in episodes:
        taken = Counter((episode.observation(t).text, episode.action(t)) for t in range(len(episode.steps)))
        steps += taken.total()
        for (_, action), times in taken.items():
            again[action] += times - 1
    return (again.total() / steps, again.most_common(1)[0][0]) if again.total() else (0.0, "")


def _spl(env: TextEnv, episodes: Sequence[Episode]) -> float | None:
    """Mean of optimal over actual length, 0 for a failure; None if a success has no plan, or no episode has one."""
    total, successes = 0.0, [episode for episode in episodes if episode.success]
    for episode in successes:
        if (optimal := _optimal(env, episode)) is None:
            return None
        total += max(optimal, 1) / max(optimal, len(episode.steps))  # 0: the goal held from the start
    planned = successes or any(_optimal(env, episode) is not None for episode in episodes)
    return total / len(episodes) if planned else None


def _optimal(env: TextEnv, episode: Episode) -> int | None:
    """Fewest steps from the episode's start to its goal; None without a planner."""
    env.reset(episode.goal, episode.seed)
    return env.optimal_length()


def _step(episode: Episode, t: int, log_pi: LogPolicy, q: npt.NDArray[np.float32]) -> dict[str, Any]:
    observation = episode.observation(t)
    return {
        "observation": observation.text,
        "actions": list(observation.actions),
        "probabilities": [round(each, _DIGITS) for each in np.exp(log_pi).tolist()],
        "q": [round(each, _DIGITS) for each in q.tolist()],
        "taken": episode.decisions[t].action,
        "achieved": list(episode.steps[t].achieved),
    }


@dataclass(frozen=True)
class Evaluations:
    """Plays a run's evaluation episodes; `check` is polled, and may raise to abort."""

    config: Config
    parts: Parts
    display: Display
    check: Callable[[], None]

    def random(self) -> Evaluation:
        """The random policy."""
        policy = SamplingPolicy(np.random.default_rng(self.config.seed))
        return self._evaluate("evaluating the random policy", UniformScorer(), policy)

    def before(self) -> Evaluation:
        """The untrained policy, greedy."""
        return self._evaluate("evaluating before", self.parts.scorer, greedy)

    def after(self) -> dict[str, Evaluation]:
        """The trained policy: greedy and sampled on training goals, and greedy on held-out goals."""
        env, sampling = build_env(self.config), SamplingPolicy(np.random.default_rng([self.config.seed, _SAMPLED]))
        return {
            name: self._evaluate(stage, self.parts.scorer, sampling if name == "sampled" else greedy, split)
            for name, (stage, split) in EVALUATIONS_AFTER.items()
            if env.goals(split)
        }

    def interim(self) -> dict[str, float]:
        """Metrics of the current policy, acting greedily."""
        with self.parts.clock.phase("evaluation"):
            episodes = self.config.evaluation.every_episodes
            evaluation = self._play(self.parts.scorer, greedy, episodes, _INTERIM, plan=False)
        metrics = {f"eval_success/{name}": value for name, value in evaluation.success.items()}
        if self.config.env.reward == "environment":
            metrics[EVALUATED_RETURN] = evaluation.mean_return
        return metrics

    def sample(self, episodes: int, env_steps: int) -> list[dict[str, Any]]:
        """Episodes in which the policy after `env_steps` acts as in training: JSON values, in starting order.

        An episode has `goal`, `goal_type`, `success` and `steps`. A step has `observation`, `actions` with their
        `probabilities` and `q`, the index of the action `taken`, and the goals it `achieved`.
        """
        config, scorer, prompt = self.config, self.parts.scorer, Prompt(self.config.prompt)
        with self.parts.clock.phase("samples"):
            env, rng = build_env(config), np.random.default_rng([config.seed, _SAMPLES, env_steps])
            goals = GoalSource(env.goals("train"), rng)
            starts = [next(goals) for _ in range(episodes)]
            copies = [build_env(config) for _ in starts]
            rollout = Rollout(copies, scorer, SamplingPolicy(rng), iter(starts), PhaseClock(), prompt)
            order = {(start.goal, start.seed): i for i, start in enumerate(starts)}
            played = sorted((e for ended in rollout.drain() for e in ended), key=lambda e: order[e.goal, e.seed])
            history = config.prompt.history
            states = [prompt(e.goal, e.observation(t), e.past(t, history)) for e in played for t in range(len(e.steps))]
            q = [values / config.algo.scale for values in self.parts.learners.q_values(states)]
            values = zip(scorer.log_policy(states), q, strict=True)  # step by step
            return [
                {
                    "goal": episode.goal,
                    "goal_type": env.goal_type(episode.goal),
                    "success": episode.success,
                    "steps": [_step(episode, t, *next(values)) for t in range(len(episode.steps))],
                }
                for episode in played
            ]

    def _evaluate(self, stage: str, scorer: Scorer, policy: Policy, split: Split = "train") -> Evaluation:
        episodes = self.config.evaluation.episodes
        self.display.stage(stage, episodes)

        def progress(done: int) -> None:
            self.display.advance(done)
            self.check()

        stream = _HELDOUT if split == "heldout" else _FINAL
        return self._play(scorer, policy, episodes, stream, split=split, progress=progress)

    def _play(self, scorer: Scorer, policy: Policy, episodes: int, stream: int, **options: Any) -> Evaluation:
        options = {"plan": self.config.env.repeats} | options
        options |= {"rng": np.random.default_rng([self.config.seed, stream]), "prompt": Prompt(self.config.prompt)}
        return evaluate(lambda: build_env(self.config), scorer, policy, episodes=episodes, **options)
