"""The values that pass between the parts of sacglam: frozen, made of plain Python and numpy, free of torch."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

LogPolicy: TypeAlias = "npt.NDArray[np.float32]"
"""log pi over the candidate actions of one state, (A,)."""
Source = Literal["real", "hindsight"]
Past: TypeAlias = Sequence[tuple[str, str]]
"""Earlier steps of an episode, oldest first: the texts of observation and action."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent sees: a text and the candidate actions of this state. Never the goal."""

    text: str
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """What one environment step returns.

    `achieved` lists *every* goal that this step accomplished and no earlier step of the episode did: the social
    partner's description. Hindsight relabelling needs nothing else.
    """

    observation: Observation
    reward: float
    achieved: tuple[str, ...]
    terminated: bool
    truncated: bool
    own_reward: float | None = None
    """The environment's own reward, if it has one; with `env.reward: environment` it replaces `reward`."""


@dataclass(frozen=True, slots=True)
class Rewards:
    """How steps are rewarded: by the environment (`own`), or with 1 for the goal.

    `success` is the reward of a step that achieves any goal, or None if unknown, in which case nothing can be
    relabelled.
    """

    own: bool = False
    success: float | None = 1.0


GOAL_REWARDS = Rewards()


@dataclass(frozen=True, slots=True)
class Decision:
    """The action an agent took: its index, its behaviour log-probability (nats), the adapter's version."""

    action: int
    log_prob: float
    version: int


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode: `steps[t]` is the outcome of `decisions[t]`."""

    goal: str
    start: Observation
    decisions: tuple[Decision, ...]
    steps: tuple[Step, ...]
    seed: int

    def observation(self, t: int) -> Observation:
        """The observation in which `decisions[t]` was taken; `t == len(steps)` is the last one seen."""
        return self.start if t == 0 else self.steps[t - 1].observation

    def action(self, t: int) -> str:
        """The text of the action that `decisions[t]` took."""
        return self.observation(t).actions[self.decisions[t].action]

    def past(self, t: int, steps: int) -> Past:
        """The last `steps` steps before `decisions[t]`."""
        if not steps:
            return ()
        return tuple((self.observation(i).text, self.action(i)) for i in range(max(0, t - steps), t))

    def transcript(self) -> str:
        """A checksum of everything the environment returned."""
        said: list[Any] = [self.start.text, self.start.actions]
        for s in self.steps:
            said += [s.observation.text, s.observation.actions, s.achieved]
            said += [float(s.reward), bool(s.terminated), bool(s.truncated)]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()

    @property
    def success(self) -> bool:
        """Whether the episode's own goal was achieved."""
        return any(self.goal in step.achieved for step in self.steps)

    @property
    def return_(self) -> float:
        """The undiscounted sum of its rewards."""
        return sum(step.reward for step in self.steps)


@dataclass(frozen=True, slots=True)
class Window:
    """L consecutive steps of an episode towards one goal: its own, or one assigned by hindsight.

    `actions[t]` led from `observations[t]` to `observations[t + 1]` and was rewarded with `rewards[t]`. The last
    observation bootstraps unless the episode `terminated` there. `return_after` is the discounted return that the
    episode had after the window, or a lower bound on it. `before` holds the steps before it that a prompt may show.
    With a replay graph, `known` holds its action values at each learnt step, and `bounds` lower bounds on the targets.
    `imitated`: drawn from demonstrations that are worth imitating.
    """

    goal: str
    observations: tuple[Observation, ...]  # L + 1
    actions: tuple[int, ...]
    rewards: tuple[float, ...]
    terminated: bool
    source: Source
    return_after: float = 0.0
    before: Past = ()
    known: tuple[tuple[float, ...], ...] = ()
    bounds: tuple[float, ...] = ()
    imitated: bool = False

    def __len__(self) -> int:
        return len(self.actions)

    def past(self, t: int, steps: int) -> Past:
        """The last `steps` steps before `observations[t]`: those `before` the window, and its own."""
        if not steps:
            return ()
        own = range(max(0, t - steps), t)
        seen = ((self.observations[i], self.actions[i]) for i in own)
        before = self.before[max(0, len(self.before) + t - steps) :]
        return (*before, *((observation.text, observation.actions[action]) for observation, action in seen))


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """One interval of the rollout: the whole `episodes` that ended in it and, for PPO, its own steps as `windows`."""

    episodes: tuple[Episode, ...]
    windows: tuple[Window, ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Success rates by goal type and `overall`, and SPL: success weighted by optimal over actual length.

    `mean_return` averages undiscounted returns, and `return_error` is its standard error, None for one episode. `spl`
    is None if the environment has no planner. `repeated` is the share of the steps in failed episodes that repeat an
    earlier action in a state with the same text, and the action repeated most often.
    """

    success: dict[str, float]
    spl: float | None
    episodes: int
    mean_return: float
    repeated: tuple[float, str] = (0.0, "")
    return_error: float | None = None


Batches = Sequence[Sequence[Window]]
"""What the learner gets for an interval: batches of sampled windows (SAC), or the interval's own steps (PPO)."""


@dataclass(frozen=True, slots=True)
class Query:
    """One state to be scored: a rendered prompt and the texts of its candidate actions."""

    prompt: str
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """A transition as text, the goals that it achieved, and those achieved earlier in its episode, for the judge."""

    transition: str
    achieved: tuple[str, ...]
    earlier: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Attempts:
    """How often each goal was pursued and achieved; the goals are the actions of a query."""

    query: Query
    attempts: tuple[int, ...]
    successes: tuple[int, ...]


class Classifiers(Protocol):
    """Classifiers that learn alongside the agent, in whatever process it learns: see `sacglam.learner.classifier`."""

    def predict(self, name: str, queries: Sequence[Query]) -> list["npt.NDArray[np.float32]"]:
        """The answer of the classifier `name` for each query's actions."""

    def fit(self, name: str, *lesson: Any) -> None:
        """Train the classifier `name`."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """The actor's LoRA weights at one version, as the files of a peft folder.

    It holds bytes, not a path, and so reaches other machines without a shared disk. `probe` is the learner's policy at
    the states where engines' policies are compared with it; empty if they are not.
    """

    version: int
    files: Mapping[str, bytes]
    probe: Sequence[LogPolicy] = ()


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """The result of one interval's updates: each update's metrics, and the adapter after the last if requested."""

    metrics: list[dict[str, float]]
    adapter: Adapter | None
