"""The base of all strategies of hindsight relabelling; those that come with sacglam are in `sacglam/replay/`."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from sacglam.config.section import Named
from sacglam.types import Window

if TYPE_CHECKING:
    import numpy as np

    from sacglam.replay.buffer import Entry, ReplayBuffer
    from sacglam.replay.windows import WindowCutter

_HERE = "sacglam.replay.strategies"


class Hindsight(Named):
    """How episodes are relabelled with goals that they achieved, and how batches are drawn from them."""

    key: ClassVar[str] = "replay.hindsight"
    shipped: ClassVar[Mapping[str, str]] = {
        "ratio": f"{_HERE}:Ratio",
        "none": f"{_HERE}:NoHindsight",
        "uniform": f"{_HERE}:Uniform",
        "prior": f"{_HERE}:Prior",
        "future": f"{_HERE}:Future",
        "graph": f"{_HERE}:Graph",
    }
    relabels: ClassVar[bool] = True
    """Whether steps are ever relabelled."""
    copies: ClassVar[bool] = True
    """Whether the buffer holds a copy of an episode for each goal that it achieved; else steps are relabelled when they
    are drawn, and the buffer reaches further back."""

    works_without_relabelling: ClassVar[bool] = False
    """Whether it draws, and does not relabel, where other goals' rewards are unknown (`Rewards.success` is None)."""

    @abstractmethod
    def entries(self, buffer: "ReplayBuffer", rng: "np.random.Generator", size: int) -> "Sequence[Entry]":
        """`size` entries of a buffer that is not empty, with replacement."""

    def batch(self, buffer: "ReplayBuffer", rng: "np.random.Generator", cut: "WindowCutter") -> list[Window]:
        """One batch: windows of `entries` until they hold as many steps as `cut` asks for."""
        return cut.fill([], buffer, rng)
