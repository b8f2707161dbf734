"""How well an untrained language model says whether a transition achieved a goal (`partner.type: scored`).

    python -m benchmarks.scored smollm2/sac_her --transitions 200

Half of the transitions of random play in the simple game achieved something. Each is judged for its episode's goal, for
all that it achieved, and for training goals up to `--goals`. A row for each question, and one for both.
"""

from __future__ import annotations

import argparse
from random import Random

import numpy as np
import torch

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
    parser.add_argument("config")
    parser.add_argument("--transitions", type=int, default=200)
    parser.add_argument("--goals", type=int, default=8)
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    fixed = ["partner=scored", "env.copies=1", "threads=1", "policy.temperature=1"]
    config = resolve(configuration.load(given.config, [*fixed, *given.set]))
    scored = build_learner(config, build_model(config), PhaseClock()).judges
    assert isinstance(scored, Scored)
    asked = transitions(config, given.transitions, given.goals, Random(config.seed))
    true = np.concatenate([achieved for _, achieved in asked])
    with torch.no_grad():
        z = [np.concatenate([scored.log_odds(query, q).numpy() for query, _ in asked]) for q in QUESTIONS]
    print(f"{len(true)} pairs of a transition and a goal, {true.sum()} achieved")
    print("| Question | AUC | Precision, recall at 0.5 | at 0.9 | at the best tenth |")
    for name, odds in zip(["first", "second", "both"], [*z, np.minimum(*z)], strict=True):
        cells = [rates(true, said) for said in (odds >= 0, odds >= np.log(9), odds >= np.quantile(odds, 0.9))]
        area = (odds[true][:, None] > odds[~true]).mean() + (odds[true][:, None] == odds[~true]).mean() / 2
        print(f"| {name} | {area:.2f} | " + " | ".join(cells) + " |", flush=True)


def rates(true: np.ndarray, said: np.ndarray) -> str:
    """Precision and recall."""
    return f"{100 * true[said].mean():.0f} %, {100 * said[true].mean():.0f} %" if said.any() else "names nothing"


if __name__ == "__main__":
    main()
