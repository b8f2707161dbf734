"""The base classes of goal sources, replay sampling and partners. The classes that come with sacglam are in
`sacglam/goals.py`, `sacglam/replay/sampling.py` and `sacglam/partners.py`."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from sacglam.config.section import Named
from sacglam.types import Classifiers, Window

if TYPE_CHECKING:
    import numpy as np

    from sacglam.clock import PhaseClock
    from sacglam.goals import GoalSource
    from sacglam.partners import Partner
    from sacglam.prompt import Prompt
    from sacglam.replay.buffer import Entry, ReplayBuffer
    from sacglam.replay.graph import ReplayGraph
    from sacglam.replay.sampling import WindowSampler


class GoalsConfig(Named):
    """Which of the training goals the episodes of a run pursue."""

    key: ClassVar[str] = "goals"
    shipped: ClassVar[Mapping[str, str]] = {
        "uniform": "sacglam.goals:UniformConfig",
        "progress": "sacglam.goals:ProgressConfig",
        "magellan": "sacglam.magellan:MagellanConfig",
    }
    competence: ClassVar[str | None] = None
    """The model trained for it alongside the agent, as `module:Class` (`sacglam.learner.competence`)."""

    @abstractmethod
    def build(
        self,
        goals: Sequence[str],
        goal_type: Callable[[str], str],
        rng: "np.random.Generator",
        prompt: "Prompt",
        classifiers: Classifiers | None,
    ) -> "GoalSource":
        """A source of these goals. It draws from `rng` alone, whose state is saved with the run.

        If `competence` names a model, `classifiers` has it and `prompt` writes its queries.
        """


class Hindsight(Named):
    """How episodes are relabelled with goals that they achieved, and how batches are drawn from them."""

    key: ClassVar[str] = "replay.hindsight"
    shipped: ClassVar[Mapping[str, str]] = {
        "ratio": "sacglam.replay.sampling:Ratio",
        "none": "sacglam.replay.sampling:NoHindsight",
        "uniform": "sacglam.replay.sampling:Uniform",
        "prior": "sacglam.replay.sampling:Prior",
        "future": "sacglam.replay.sampling:Future",
        "graph": "sacglam.replay.sampling:Graph",
    }
    relabels: ClassVar[bool] = True
    """Whether steps are ever relabelled."""
    copies: ClassVar[bool] = True
    """Whether the buffer holds a copy of an episode for each goal that it achieved; otherwise steps are relabelled when
    they are drawn, and the buffer reaches further back."""

    works_without_relabelling: ClassVar[bool] = False
    """Whether it can draw without relabelling where other goals' rewards are unknown (`Rewards.success` is None)."""

    @abstractmethod
    def entries(self, buffer: "ReplayBuffer", rng: "np.random.Generator", size: int) -> "Sequence[Entry]":
        """Draw `size` entries with replacement from a buffer that is not empty."""

    def batch(
        self,
        buffer: "ReplayBuffer",
        rng: "np.random.Generator",
        sampler: "WindowSampler",
        steps: int,
        graph: "Callable[[], ReplayGraph] | None" = None,
    ) -> list[Window]:
        """Draw a batch of at least `steps` learnt steps: windows cut from `entries`.

        `graph` gives the graph to take values from where it has more episodes than the buffer.
        """
        return sampler.windows(partial(self.entries, buffer, rng), steps)


class PartnerConfig(Named):
    """Who judges what an episode achieved, before it is stored. Evaluations always ask the environment."""

    key: ClassVar[str] = "partner"
    shipped: ClassVar[Mapping[str, str]] = {
        "environment": "sacglam.partners:EnvironmentConfig",
        "judge": "sacglam.partners:JudgeConfig",
        "scored": "sacglam.partners:ScoredConfig",
    }
    judge: ClassVar[str | None] = None
    """The model trained for it alongside the agent, as `module:Class` (`sacglam.learner.judge`)."""

    @property
    def needs_steps(self) -> int:
        """Steps that the environment must judge before this partner can."""
        return 0

    @property
    def imagines(self) -> str:
        """What goals that the environment does not know are for: `relabelling`, `pursuing` too, or, if empty, none."""
        return ""

    @abstractmethod
    def build(
        self, rng: "np.random.Generator", clock: "PhaseClock", prompt: "Prompt", classifiers: Classifiers
    ) -> "Partner":
        """The partner with these settings; the state of `rng` is saved with the run. `classifiers` has its model."""
