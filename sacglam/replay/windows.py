"""Cuts windows of steps from an episode for a goal: the same function for the real goal and every hindsight goal."""

from sacglam.types import GOAL_REWARDS, Episode, Rewards, Window

_UNKNOWN = -1e9  # a lower bound on any return; finite, since 0 * inf is NaN


def window(
    episode: Episode,
    goal: str,
    start: int,
    length: int,
    gamma: float,
    history: int = 0,
    rewards: Rewards = GOAL_REWARDS,
) -> Window:
    """At most `length` steps of `episode` from `start` on, as if `goal` had been its goal (paper, Section 2.3).

    The episode's own goal keeps the environment's rewards and end. For any other goal, the episode terminates at the
    step that achieved it, with the reward of a success; earlier steps have reward 0, or the environment's own. The end
    may cut a window short. A window also holds up to `history` steps before its first, whatever the goal.

    Raises:
        ValueError: `goal` is neither the episode's own nor achieved in it, or its reward is unknown.
    """
    real, end = goal == episode.goal, last_step(episode, goal)
    stop = min(start + length, end + 1)
    earned = [step.reward if real or rewards.own else 0.0 for step in episode.steps[: end + 1]]
    if not real:
        if rewards.success is None:
            raise ValueError(f"cannot relabel with {goal!r}: it is unknown how the environment would have rewarded it")
        earned[end] = rewards.success
    # Own rewards may be negative, so nothing is known about the return of an episode that was cut off.
    unknown = rewards.own and real and not episode.steps[end].terminated
    return Window(
        goal=goal,
        observations=tuple(episode.observation(t) for t in range(start, stop + 1)),
        actions=tuple(decision.action for decision in episode.decisions[start:stop]),
        rewards=tuple(earned[start:stop]),
        terminated=stop == end + 1 and (not real or episode.steps[end].terminated),
        source="real" if real else "hindsight",
        return_after=_UNKNOWN if unknown else sum(gamma**i * reward for i, reward in enumerate(earned[stop:])),
        before=episode.past(start, history),
    )


def last_step(episode: Episode, goal: str) -> int:
    """The step at which `episode` ends for `goal`: for its own, the first step that terminates it, or else its last;
    for another, the step that achieved it. Only a partner (`sacglam.partners`) can terminate one before its last step.

    Raises:
        ValueError: see `window`.
    """
    if goal == episode.goal:
        return next((t for t, step in enumerate(episode.steps) if step.terminated), len(episode.steps) - 1)
    for t, step in enumerate(episode.steps):
        if goal in step.achieved:
            return t
    raise ValueError(f"cannot relabel with {goal!r}: the episode did not achieve it")


def hindsight_goals(episode: Episode, t: int) -> list[str]:
    """The goals other than its own that step `t` of the episode achieved."""
    return [goal for goal in episode.steps[t].achieved if goal != episode.goal]
