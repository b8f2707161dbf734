"""The interface between the learner and an algorithm: its losses and what surrounds them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from sacglam.clock import PhaseClock
from sacglam.models.actor_critic import Lerp
from sacglam.models.agent_model import AgentModel

MapNoGrad = Callable[[Callable[[Sequence[Any]], Tensor], Sequence[Any], int], Tensor]
"""`map_no_grad(compute, rows, size)` computes without gradient over many rows, split over the learner's ranks.

`compute` returns (K, rows) for at most `size` rows; the result is (K, N) float64, equal on all ranks.
"""


class Algorithm(ABC):
    """A learning rule over one model.

    `update` is the number of updates done so far, or -1 for initial updates on demonstrations, which train only the
    critic unless the algorithm learns offline.
    """

    model_class: ClassVar[type[AgentModel]]
    """The class of its model."""

    def __init__(
        self, model: Any, config: Any, total_updates: int, rng: np.random.Generator, clock: PhaseClock
    ) -> None:
        """`total_updates` is the number in the whole run, at which decays end; `rng` draws the same on every rank."""
        self._model, self._config, self._total_updates = model, config, total_updates
        self._rng, self._clock = rng, clock

    def minibatches(self, batches: Sequence[Sequence[Any]], map_no_grad: MapNoGrad) -> Iterable[Sequence[Any]]:
        """The rows of each gradient step, from the batches of one interval; by default one step per batch."""
        return batches

    def learnt_steps(self, row: Any) -> int:
        """The steps in a row; losses are means over steps."""
        return 1

    @abstractmethod
    def collate(self, rows: Sequence[Any]) -> Any:
        """Rows as tensors on the model's device."""

    @abstractmethod
    def losses(self, batch: Any, update: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, a mean over steps, and its metrics, scalars without gradient on the model's device."""

    def trains_actor(self, update: int) -> bool:
        """Whether the actor's weights have a gradient in this update."""
        return True

    def after_step(self, metrics: dict[str, float], update: int, lerp: Lerp) -> dict[str, float]:
        """Update what follows the weights, such as a target network, after a gradient step; returns more metrics."""
        return {}

    def state(self) -> dict[str, Any]:
        """Everything but the weights that a checkpoint needs, such as generators, as JSON values."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Restore what `state()` returned."""
