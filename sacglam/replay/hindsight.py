"""From an episode and a goal to transitions: the same function for the real goal and every hindsight goal."""

from sacglam.types import Episode, Transition


def transitions(episode: Episode, goal: str, n: int, gamma: float) -> list[Transition]:
    """The n-step transitions of `episode` as if `goal` had been its goal (paper, Section 2.3 and Eq. 3).

    For the episode's own goal: the environment's rewards and end. For any other: the prefix up to the step that
    achieved it, with reward 1 and termination there. A window at the end is shorter than n and discounts by its own
    length.

    Raises:
        ValueError: `goal` is neither the episode's own nor achieved in it.
    """
    real = goal == episode.goal
    end = len(episode.steps) - 1 if real else _achieved_at(episode, goal)
    rewards = [step.reward for step in episode.steps] if real else [float(t == end) for t in range(end + 1)]
    terminated = episode.steps[end].terminated if real else True
    found = []
    for t, decision in enumerate(episode.decisions[: end + 1]):
        stop = min(t + n, end + 1)
        found.append(
            Transition(
                goal=goal,
                observation=episode.observation(t),
                action=decision.action,
                reward_n=sum(gamma**i * reward for i, reward in enumerate(rewards[t:stop])),
                discount_n=gamma ** (stop - t),
                terminated=terminated and stop == end + 1,
                next_observation=episode.observation(stop),
                source="real" if real else "hindsight",
                version=decision.version,
            )
        )
    return found


def hindsight_goals(episode: Episode) -> list[str]:
    """Every goal but its own that the episode achieved, in order of achievement."""
    return [goal for step in episode.steps for goal in step.achieved if goal != episode.goal]


def _achieved_at(episode: Episode, goal: str) -> int:
    for t, step in enumerate(episode.steps):
        if goal in step.achieved:
            return t
    raise ValueError(f"cannot relabel with {goal!r}: the episode did not achieve it")
