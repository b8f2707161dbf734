"""Success on fresh episodes."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from sacglam.clock import PhaseClock
from sacglam.envs.base import Split, TextEnv
from sacglam.envs.checks import CheckedEnv
from sacglam.errors import ConfigError
from sacglam.goals import GoalSource
from sacglam.policy import Policy
from sacglam.prompt import Prompt, query
from sacglam.rollout import Rollout
from sacglam.scoring.base import Scorer
from sacglam.types import Episode, Evaluation

_COPIES = 64
EVALUATIONS_AFTER: Mapping[str, tuple[str, Split]] = {
    "train": ("evaluating after", "train"),
    "sampled": ("evaluating sampled actions", "train"),
    "heldout": ("evaluating held-out goals", "heldout"),
}
"""The evaluations of the trained policy: name -> (what the display says, split, skipped if it has no goals)."""

Progress = Callable[[int], None]


def evaluate(
    make_env: Callable[[], TextEnv],
    scorer: Scorer,
    policy: Policy,
    *,
    split: Split = "train",
    episodes: int,
    rng: np.random.Generator,
    progress: Progress = lambda done: None,
    prompt: Prompt = query,
) -> Evaluation:
    """Play `episodes` fresh episodes with goals drawn uniformly from `split`, or from its tasks if there are any.

    `progress` receives the number of finished episodes. `prompt` must be the one the policy was trained with.

    Raises:
        ConfigError: the environment has no goals in this split.
    """
    env = make_env()
    goals = env.tasks() if split == "train" and isinstance(env, CheckedEnv) else env.goals(split)
    if not goals:
        raise ConfigError(f"this environment has no {split} goals to evaluate on; take --goals train")
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
    efficiencies = [_efficiency(env, episode) for episode in played]
    measured = [e for e in efficiencies if e is not None]
    return Evaluation(
        success={name: float(np.mean(by_type[name])) for name in ["overall", *sorted(by_type.keys() - {"overall"})]},
        spl=float(np.mean(measured)) if len(measured) == len(played) and _optimal(env, played[0]) is not None else None,
        episodes=len(played),
        mean_return=float(np.mean([episode.return_ for episode in played])),
        repeated=_repeated([episode for episode in played if not episode.success]),
    )


def _repeated(episodes: Sequence[Episode]) -> tuple[float, str]:
    actions = [[episode.action(t) for t in range(len(episode.steps))] for episode in episodes]
    pairs = [pair for each in actions for pair in pairwise(each)]
    again = Counter(action for before, action in pairs if action == before)
    return (again.total() / len(pairs), again.most_common(1)[0][0]) if again else (0.0, "")


def _efficiency(env: TextEnv, episode: Episode) -> float | None:
    """Optimal over taken length for a success, 0 for a failure; None for a success without a planner."""
    if not episode.success:
        return 0.0
    optimal = _optimal(env, episode)
    return None if optimal is None else optimal / max(optimal, len(episode.steps))


def _optimal(env: TextEnv, episode: Episode) -> int | None:
    """Fewest steps from the episode's start to its goal; None without a planner."""
    env.reset(episode.goal, episode.seed)
    return env.optimal_length()
