"""A trial of an environment: random episodes show whether it keeps its contract, and what there is to learn from."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from sacglam.envs.base import Split, TextEnv
from sacglam.envs.checks import evaluation_goals, member
from sacglam.errors import EnvironmentContractError

_EPISODES, _STEPS = 8, 50
_CONTEXT = 50  # characters before the first difference of two answers; twice as many are shown after it


@dataclass(frozen=True)
class Trial:
    """What a trial of an environment saw."""

    episodes: int
    steps: int
    successes: int
    goals: int
    most_actions: int
    others_achieved: int
    """Distinct goals that were achieved in episodes with a different goal."""
    notes: tuple[str, ...]
    hindsight: str
    """What the achievements mean for hindsight, if there is nothing to relabel or nothing else to learn from."""


def check_env(make_env: Callable[[], TextEnv], episodes: int = _EPISODES, repeats: bool = True) -> Trial:
    """Play random episodes in two copies at once, and hold their answers against the contract and each other.

    The second copy plays a step of another episode before each, which must not matter. If the environment need not
    repeat itself (`repeats` false), there is one copy. For tests of your own:
    `check_env(lambda: CheckedEnv(House(), "house"), 100)`.

    Raises:
        EnvironmentContractError: an answer breaks the contract, or the copies differ.
    """
    before = _of_the_process()
    copies = [make_env() for _ in range(2 if repeats else 1)]
    first, *others = copies
    goals, rng, seen = _goals(copies), Random(0), _Seen()
    for episode in range(episodes):
        goal, seed = goals[rng.randrange(len(goals))], rng.randrange(2**31)
        first.goal_type(goal)
        for other in others:
            other.reset(goals[0], episode)
            other.step(0)
        _play(copies, goal, seed, rng, seen)
    for (what, was, remedy), (_, now, _) in zip(before, _of_the_process(), strict=True):
        if now != was:
            raise EnvironmentContractError(f"the environment changed {what} from {was} to {now}, {remedy}")
    notes = tuple((member(first, "notes") or tuple)())
    hindsight = _hindsight(seen.successes, len(seen.others), f"in {episodes} random episodes of at most {_STEPS} steps")
    counts = (episodes, seen.steps, seen.successes, len(goals), seen.most_actions, len(seen.others))
    return Trial(*counts, notes, hindsight)


def _of_the_process() -> list[tuple[str, str, str]]:
    """What an environment may change for the whole process: the name, the value, and why and how to leave it alone."""
    torch = sys.modules.get("torch")
    dtype, gradients = (torch.get_default_dtype(), torch.is_grad_enabled()) if torch else ("torch.float32", True)
    return [
        (
            "the working directory",
            os.getcwd(),
            "where the run's files would end up; have it use absolute paths, start its processes with cwd=, or set "
            "env.workers",
        ),
        ("torch's default dtype", str(dtype), "in which the agent would compute; have it give dtype= to its tensors"),
        (
            "whether torch records gradients",
            str(gradients),
            "without which nothing is learnt; have it use `with torch.no_grad():`",
        ),
    ]


@dataclass
class _Seen:
    """What the episodes so far have shown."""

    steps: int = 0
    successes: int = 0
    most_actions: int = 0
    others: set[str] = field(default_factory=set)


def _play(copies: Sequence[TextEnv], goal: str, seed: int, rng: Random, seen: _Seen) -> None:
    """A random episode in all copies."""
    shown = f"goal {goal!r}, seed {seed}"
    observation = _agreed([copy.reset(goal, seed) for copy in copies], f"at the start of {shown}")
    copies[0].optimal_length()
    for t in range(1, _STEPS + 1):
        seen.most_actions = max(seen.most_actions, len(observation.actions))
        action = rng.randrange(len(observation.actions))
        step = _agreed([copy.step(action) for copy in copies], f"after {t} steps of {shown}")
        observation = step.observation
        seen.steps += 1
        seen.others.update(achieved for achieved in step.achieved if achieved != goal)
        if step.terminated or step.truncated:
            seen.successes += goal in step.achieved
            return


def _goals(copies: Sequence[TextEnv]) -> Sequence[str]:
    """The training goals, once the copies agree on all goals. A run asks for the held-out ones only at its end."""
    first, *others = copies
    splits: tuple[Split, ...] = ("train", "heldout")
    for split in splits:
        if any(list(first.goals(split)) != list(other.goals(split)) for other in others):
            raise EnvironmentContractError(
                f"two copies of the environment list different {split} goals; give them a fixed order"
            )
    for goal in first.goals("heldout")[:1]:
        first.goal_type(goal)
        first.reset(goal, 0)
    evaluation_goals(first, "train")
    return first.goals("train")


def _hindsight(successes: int, others: int, where: str) -> str:
    if not successes and not others:
        return (
            f"no goal at all was achieved {where}: there is no reward, and hindsight has nothing to relabel. Add goals "
            "that random play reaches, list them in Step.achieved when it does, or allow more steps"
        )
    if not successes:
        return (
            f"no episode achieved its own goal {where}, while {others:,} other goals were achieved: without hindsight "
            "(replay.hindsight; PPO has none) there may be nothing to learn from"
        )
    if not others:
        return f"hindsight has nothing to relabel: no step achieved another goal than its episode's own {where}"
    return ""


def _agreed(answers: list[Any], when: str) -> Any:
    """The answer of all copies."""
    if answers[0] != answers[-1]:
        said = [repr(answer) for answer in (answers[0], answers[-1])]
        start = next((i for i, (a, b) in enumerate(zip(*said, strict=False)) if a != b), 0) - _CONTEXT
        shown = [f"...{text[max(start, 0) :][: 3 * _CONTEXT]}..." for text in said]
        raise EnvironmentContractError(
            f"the environment does not repeat itself: {when}, one copy answers {shown[0]}, another {shown[1]}. "
            "Draw all randomness from a generator that reset seeds with its seed; or set env.repeats to false, and "
            "train without exact resume"
        )
    return answers[0]
