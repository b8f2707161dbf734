"""The fewest steps to a goal: by the environment's planner, else by breadth-first search over what the agent reads."""

from __future__ import annotations

from collections import deque
from random import Random

from sacglam.envs import TextEnv
from sacglam.types import Observation


class Search:
    """Searches one environment; states that read the same count as one, and results are kept."""

    def __init__(self, env: TextEnv) -> None:
        self._env = env
        self._limit = step_limit(env)
        self._known: dict[Observation, dict[str, int]] = {}  # for the first state of an episode: steps to each goal

    def fewest_steps(self, goal: str, seed: int) -> int | None:
        """The steps from the start of this episode to its goal; None if it is out of reach."""
        first = self._env.reset(goal, seed)
        planned = self._env.optimal_length()
        if planned is not None:
            return planned if planned <= self._limit else None
        known = self._known.setdefault(first, {})
        if goal not in known:
            self._expand(first, goal, seed, known)
        return known.get(goal)

    def _expand(self, first: Observation, goal: str, seed: int, known: dict[str, int]) -> None:
        """Reach states in the order of their distance, by replaying actions, until one achieves the goal."""
        seen, reached = {first}, deque([((), first)])
        while reached:
            path, observation = reached.popleft()
            for action in range(len(observation.actions)):
                self._env.reset(goal, seed)
                *_, step = [self._env.step(taken) for taken in (*path, action)]
                for achieved in step.achieved:
                    known.setdefault(achieved, len(path) + 1)
                if goal in step.achieved:
                    return
                if not (step.terminated or step.truncated) and step.observation not in seen:
                    seen.add(step.observation)
                    reached.append(((*path, action), step.observation))


def step_limit(env: TextEnv) -> int:
    """The steps after which an episode is truncated, by playing at random until one is."""
    rng, goals = Random(0), env.goals("train")
    while True:
        observation, steps = env.reset(rng.choice(goals), rng.randrange(2**31)), 0
        while True:
            step = env.step(rng.randrange(len(observation.actions)))
            observation, steps = step.observation, steps + 1
            if step.truncated:
                return steps
            if step.terminated:
                break
