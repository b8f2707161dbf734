"""How well an untrained language model says whether a transition achieved a goal (`partner.type: scored`).

    python -m benchmarks.scored models/smollm2 --transitions 200

Half of the transitions of random play in the simple game achieved something. Each is judged for its episode's goal, for
all that it achieved, and for training goals up to `--goals`. A row for each question, and one for both.
"""

from __future__ import annotations

import argparse
from random import Random

import numpy as np
import torch

from benchmarks import common
from sacglam import config as configuration
from sacglam.build import build_learner, build_model
from sacglam.clock import PhaseClock
from sacglam.collector import build_env
from sacglam.goals import GoalSource
from sacglam.learner.judge import QUESTIONS, Scored
from sacglam.policy import SamplingPolicy
from sacglam.prompt import Prompt
from sacglam.resolve import resolve
from sacglam.rollout import Rollout
from sacglam.scoring.base import UniformScorer
from sacglam.types import Query


def transitions(config: configuration.Config, count: int, goals: int, rng: Random) -> list[tuple[Query, list[bool]]]:
    """Transitions of random play, the goals that each is judged for, and which of these it achieved."""
    env, prompt, known = build_env(config), Prompt(config.prompt), list(build_env(config).goals("train"))
    starts = GoalSource(known, np.random.default_rng(config.seed))
    rollout = Rollout([env], UniformScorer(), SamplingPolicy(np.random.default_rng(1)), starts, PhaseClock(), prompt)
    found: dict[bool, list[tuple[Query, list[bool]]]] = {True: [], False: []}
    while min(map(len, found.values())) < count // 2:
        for episode in rollout.step():
            for t, step in enumerate(episode.steps):
                asked = list(dict.fromkeys([episode.goal, *step.achieved, *rng.sample(known, goals)]))[:goals]
                query = prompt.judged(prompt.transition(episode, t), asked)
                found[bool(step.achieved)].append((query, [goal in step.achieved for goal in asked]))
    return [each for some in found.values() for each in rng.sample(some, count // 2)]


def main() -> None:
    """Print the area under the curve, and precision and recall at probabilities 0.5 and 0.9 and of the best tenth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--transitions", type=int, default=200)
    parser.add_argument("--goals", type=int, default=8)
    given = parser.parse_args()
    settings = ["partner=scored", "env.copies=1", "threads=1", f"model.name={given.model}"]
    config = resolve(configuration.load("quickstart", settings))
    scored = build_learner(config, build_model(config), PhaseClock()).classifiers["judge"]
    assert isinstance(scored, Scored)
    asked = transitions(config, given.transitions, given.goals, Random(config.seed))
    true = np.concatenate([achieved for _, achieved in asked])
    with torch.no_grad():
        z = [np.concatenate([scored.log_odds(query, q).numpy() for query, _ in asked]) for q in QUESTIONS]
    found = {"pairs": len(true), "achieved": int(true.sum())}
    odds = zip(["first", "second", "both"], [*z, np.minimum(*z)], strict=True)
    common.emit([{"question": name, **found, **rates(true, each)} for name, each in odds])


def rates(true: np.ndarray, odds: np.ndarray) -> dict[str, object]:
    """The area under the curve; precision (None if nothing is named) and recall by what is named."""
    area = (odds[true][:, None] > odds[~true]).mean() + (odds[true][:, None] == odds[~true]).mean() / 2
    named = {"at 0.5": odds >= 0, "at 0.9": odds >= np.log(9), "best tenth": odds >= np.quantile(odds, 0.9)}
    return {
        "auc": round(float(area), 3),
        **{
            k: (round(float(true[n].mean()), 3) if n.any() else None, round(float(n[true].mean()), 3))
            for k, n in named.items()
        },
    }


if __name__ == "__main__":
    main()
