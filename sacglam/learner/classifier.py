"""Classifiers that learn alongside the agent, with their own adapters and heads on its language model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from sacglam.errors import DivergenceError
from sacglam.learner.backend import Backend, Row, micro_batches
from sacglam.models.agent_model import AgentModel, check_forms, for_each, joined
from sacglam.models.heads import QHeads
from sacglam.types import Query

ROWS = 32
"""Queries per pass. Their memory is needed in addition to an update's."""
_GOALS = 64  # per query, since the work grows with their square


class Classifier(Protocol):
    """Learns alongside the agent, on its own adapters. Built from the agent's model, a `Config` and a `Backend`."""

    adapters: ClassVar[Sequence[str]]

    def predict(self, queries: Sequence[Query]) -> list[npt.NDArray[np.float32]]:
        """The answer for each query's actions."""

    def learn(self, *lesson: Any) -> None:
        """Learn from a lesson, the same on all ranks; by default, nothing."""

    def state(self) -> dict[str, Tensor]:
        """Everything that training changes, by name, as tensors on the CPU."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state()` returned.

        Raises:
            CheckpointError: it belongs to another model, adapter or head.
        """


class AdapterAndHead:
    """Log-odds of each action of a query, from its own adapter and head on the agent's language model.

    Goals take the place of actions, so one packed pass judges all of a query's goals. It and the agent
    do not change each other's weights.
    """

    def __init__(self, model: AgentModel, adapter: str, head: QHeads, backend: Backend) -> None:
        """`model` has the adapter. `head` has one critic, whose value is the log-odds."""
        self._model, self._adapter, self._backend, self._head = model, adapter, backend, head.to(model.device)
        lora = model.lm.adapter_parameters(adapter)
        self.parameters: Mapping[str, nn.Parameter] = joined({"head": dict(head.named_parameters()), "lora": lora})
        for parameter in self.parameters.values():
            parameter.requires_grad_(False)

    def log_odds(self, queries: Sequence[Query]) -> Tensor:
        """(B, A), 0 on padding."""
        return self._head(self._model.lm.forward(self._model.pack(queries), self._adapter))[0]

    def predict(self, queries: Sequence[Query]) -> list[npt.NDArray[np.float32]]:
        """The probability of each action of each query, (A,).

        Raises:
            DivergenceError: one is not finite.
        """
        parts = [Query(q.prompt, q.actions[i : i + _GOALS]) for q in queries for i in range(0, len(q.actions), _GOALS)]
        if not parts:
            return []
        answers = np.concatenate(for_each(parts, ROWS, lambda some: self.log_odds(some).sigmoid()))
        if not np.isfinite(answers).all():
            raise DivergenceError(
                f"the {self._adapter} model has diverged: its answers are no longer finite numbers; start again, for a "
                "judge with a smaller algo.critic_lr"
            )
        return np.split(answers, np.cumsum([len(query.actions) for query in queries])[:-1])

    def add_gradient(
        self, batch: Sequence[Row], loss: Callable[[Sequence[Row]], Tensor], size: Callable[[Row], int] = lambda row: 1
    ) -> None:
        """Add the gradient of the mean `loss` over `batch`, which is split over the ranks; `size` is a row's weight."""
        for parameter in self.parameters.values():
            parameter.requires_grad_(True)
        try:
            for rows, weight in micro_batches(batch, self._backend.rank, self._backend.world, ROWS, size):
                (loss(rows) * weight).backward()  # type: ignore[no-untyped-call]
        finally:
            for parameter in self.parameters.values():
                parameter.requires_grad_(False)
        if self._backend.world > 1:
            gradients = [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]
            sums = self._backend.all_reduce_sum(parameters_to_vector(gradients))
            vector_to_parameters(sums.to(self._model.device), gradients)

    def state(self) -> dict[str, Tensor]:
        """See `Classifier.state`."""
        return {name: parameter.detach().to("cpu", copy=True) for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `Classifier.load_state`."""
        check_forms(state, self.state())
        for name, parameter in self.parameters.items():
            parameter.copy_(state[name])
