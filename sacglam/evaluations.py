"""The evaluations of a run: before, during and after its training."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sacglam.build import Parts
from sacglam.collector import build_env
from sacglam.config import Config
from sacglam.envs import Split
from sacglam.evaluate import EVALUATIONS_AFTER, evaluate
from sacglam.policy import Policy, SamplingPolicy, greedy
from sacglam.prompt import Prompt
from sacglam.runs.directory import EVALUATED_RETURN
from sacglam.runs.display import Display
from sacglam.samples import sample_episodes
from sacglam.scoring.base import Scorer, UniformScorer
from sacglam.types import Evaluation

# Streams of evaluation episodes: before and after a run the same ones, and others during it; the last one, of actions.
_FINAL, _HELDOUT, _INTERIM, _SAMPLES, _SAMPLED = 0xF17A1, 0x4E1D0, 0x17E21, 0x5A3B1, 0x5A3D


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
        """The trained policy, greedy and sampled, and on the goals held out."""
        env, sampling = build_env(self.config), SamplingPolicy(np.random.default_rng([self.config.seed, _SAMPLED]))
        return {
            name: self._evaluate(stage, self.parts.scorer, sampling if name == "sampled" else greedy, split)
            for name, (stage, split) in EVALUATIONS_AFTER.items()
            if env.goals(split)
        }

    def interim(self) -> dict[str, float]:
        """Metrics of the policy in training, greedy."""
        settings, splits = self.config.evaluation, dict[str, Split](eval_success="train")
        if settings.heldout and build_env(self.config).goals("heldout"):
            splits["heldout_success"] = "heldout"
        metrics: dict[str, float] = {}
        for prefix, split in splits.items():
            with self.parts.clock.phase("evaluation"):
                evaluation = self._play(self.parts.scorer, greedy, settings.every_episodes, _INTERIM, split=split)
            metrics |= {f"{prefix}/{name}": value for name, value in evaluation.success.items()}
            if self.config.env.reward == "environment" and split == "train":
                metrics[EVALUATED_RETURN] = evaluation.mean_return
        return metrics

    def sample(self, episodes: int, env_steps: int) -> list[dict[str, Any]]:
        """Episodes of the policy after `env_steps`, as it acts in training, in the form of samples.jsonl."""
        with self.parts.clock.phase("samples"):
            return sample_episodes(
                lambda: build_env(self.config),
                self.parts.scorer,
                self.parts.learners.q_values,
                episodes,
                np.random.default_rng([self.config.seed, _SAMPLES, env_steps]),
                Prompt(self.config.prompt),
            )

    def _evaluate(self, stage: str, scorer: Scorer, policy: Policy, split: Split = "train") -> Evaluation:
        episodes = self.config.evaluation.episodes
        self.display.stage(stage, episodes)

        def progress(done: int) -> None:
            self.display.advance(done)
            self.check()
            self.parts.learners.check()

        stream = _HELDOUT if split == "heldout" else _FINAL
        return self._play(scorer, policy, episodes, stream, split=split, progress=progress)

    def _play(self, scorer: Scorer, policy: Policy, episodes: int, stream: int, **options: Any) -> Evaluation:
        options |= {"rng": np.random.default_rng([self.config.seed, stream]), "prompt": Prompt(self.config.prompt)}
        return evaluate(lambda: build_env(self.config), scorer, policy, episodes=episodes, **options)
