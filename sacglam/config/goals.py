"""The base of all sources of goals; those that come with sacglam are in `sacglam/goals.py`."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from sacglam.config.section import Named

if TYPE_CHECKING:
    import numpy as np

    from sacglam.goals import GoalSource


class GoalsConfig(Named):
    """Which of the training goals the episodes of a run pursue."""

    key: ClassVar[str] = "goals"
    shipped: ClassVar[Mapping[str, str]] = {
        "uniform": "sacglam.goals:UniformConfig",
        "progress": "sacglam.goals:ProgressConfig",
    }

    @abstractmethod
    def source(self, goals: Sequence[str], goal_type: Callable[[str], str], rng: "np.random.Generator") -> "GoalSource":
        """A new source of these goals. It draws from `rng` alone, whose state is saved with the run."""
