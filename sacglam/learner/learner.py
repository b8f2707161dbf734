"""The learner: experience in, better adapter and critic out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sacglam.algos.base import Algorithm
from sacglam.clock import PhaseClock
from sacglam.errors import DivergenceError
from sacglam.learner.backend import Backend, Moments
from sacglam.learner.schedule import Schedule
from sacglam.learner.shares import shares
from sacglam.models.agent_model import AgentModel
from sacglam.models.base import PackedLM
from sacglam.models.files import exported_files
from sacglam.scoring.base import Scorer
from sacglam.types import Adapter, LogPolicy, Query

QValues = Callable[[Sequence[Query]], list[npt.NDArray[np.float32]]]
_Q_STATES = 32  # in one pass of `q_values`, which must fit beside an update's memory


class Learner:
    """Takes the gradient steps of an algorithm and counts them; the count is the policy's version.

    On several ranks each holds a learner, and every call is made on all of them with the same arguments.
    """

    def __init__(
        self,
        model: AgentModel,
        algorithm: Algorithm,
        lm: PackedLM,
        scorer: Scorer,
        q_values: QValues,
        backend: Backend,
        schedule: Schedule,
        critic: Mapping[str, Any],
        clock: PhaseClock,
    ) -> None:
        """`algorithm`, `lm`, `scorer` and `q_values` are over the weights of `model`, which `backend` holds.

        `critic` describes the critic's heads in the exported files.
        """
        self.model = model
        self.algorithm = algorithm
        self.updates = 0
        self._lm = lm
        self._scorer = scorer
        self._q_values = q_values
        self._backend = backend
        self._schedule = schedule
        self._critic = critic
        self._clock = clock

    def update(self, batches: Sequence[Sequence[Any]]) -> list[dict[str, float]]:
        """The gradient steps that the algorithm takes for an interval's `batches`; the metrics of each.

        Raises:
            DivergenceError: a loss or gradient is not finite; the step at fault has changed nothing, on any rank.
        """
        return [self._step(rows) for rows in self.algorithm.minibatches(batches, self._map_no_grad)]

    def _step(self, rows: Sequence[Any]) -> dict[str, float]:
        metrics = self._gradient(rows)
        rates = self._schedule.rates(self.updates, self.algorithm.trains_actor(self.updates))
        with self._clock.phase("optimizer"):
            metrics["grad_norm"] = self._backend.step(rates)
        self._check(metrics)
        metrics |= self.algorithm.after_step(metrics, self.updates, partial(self._backend.gathered, change=True))
        self.updates += 1
        return metrics

    def _gradient(self, rows: Sequence[Any]) -> dict[str, float]:
        """Accumulate the gradient of the mean loss over `rows`; its metrics."""
        sums: dict[str, float] = defaultdict(float)
        parts = shares(rows, self._backend.rank, self._backend.world, self._schedule.micro_batch_size)
        for number, share in enumerate(parts, start=1):
            with self._clock.phase("batch"):
                batch = self.algorithm.collate(share.rows)
            loss, found = self._backend.forward(partial(self.algorithm.losses, batch, self.updates))
            with self._clock.phase("backward"):
                # A metric that is not finite spoils the gradient, so that one check, on its norm, stops every rank.
                weight = share.weight if all(map(math.isfinite, found.values())) else math.nan
                self._backend.backward(loss * weight, last=number == len(parts))
            for name, value in found.items():
                sums[name] += share.weight * value
        totals = self._backend.all_reduce_sum(torch.tensor(list(sums.values()), dtype=torch.float64))
        return dict(zip(sums, totals.tolist(), strict=True))

    def _map_no_grad(self, compute: Callable[[Sequence[Any]], Tensor], rows: Sequence[Any], size: int) -> Tensor:
        """See `sacglam.algos.base.MapNoGrad`."""
        parts = shares(range(len(rows)), self._backend.rank, self._backend.world, size)
        found = [self._backend.forward(partial(compute, [rows[i] for i in share.rows])) for share in parts]
        whole = torch.zeros(len(found[0]), len(rows), dtype=torch.float64)
        for share, values in zip(parts, found, strict=True):
            if share.weight:
                whole[:, list(share.rows)] = values.to("cpu", torch.float64)
        return self._backend.all_reduce_sum(whole)

    def _check(self, metrics: Mapping[str, float]) -> None:
        faults = {name: value for name, value in metrics.items() if not math.isfinite(value)}
        if faults:
            raise DivergenceError(
                f"update {self.updates + 1} expected finite losses, got {faults}. The last checkpoint is whole; "
                "train anew with smaller algo.actor_lr and algo.critic_lr, or with algo.max_grad_norm set"
            )

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        """log pi over each query's actions, from the weights that learn: what engines' scores must equal.

        Raises:
            DivergenceError: the weights give no number.
        """
        return self._backend.forward(partial(self._scorer.log_policy, queries))

    def q_values(self, queries: Sequence[Query]) -> list[npt.NDArray[np.float32]]:
        """min_c Q_c of each query's own actions, a float32 array (A,) for each; empty where the critic has V alone."""
        found: list[npt.NDArray[np.float32]] = []
        for start in range(0, len(queries), _Q_STATES):
            found += self._backend.forward(partial(self._q_values, queries[start : start + _Q_STATES]))
        return found

    def adapter(self) -> Adapter:
        """The actor's LoRA weights as they are now, for the engines."""
        with self._backend.gathered():
            return Adapter(self.updates, self._lm.adapter_files())

    def exported(self) -> dict[str, bytes]:
        """The learned actor and critic as files for other tools, by name."""
        with self._backend.gathered():
            return exported_files(self._lm, self.model, self._critic)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that an update depends on: tensors (weights, targets, Adam's moments) and JSON values.

        The same whole tensors, on the CPU, whatever the number of ranks and the way they share the weights out.
        """
        with self._backend.gathered():
            tensors = {f"model.{name}": _copied(tensor) for name, tensor in self.model.state().items()}
        for index, moments in self._backend.moments().items():
            tensors |= {f"adam.{index}.{name}": _copied(tensor) for name, tensor in moments.items()}
        return tensors, {"updates": self.updates, **self.algorithm.state()}

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Take over what `state()` gave, on any number of ranks.

        Raises:
            CheckpointError: it was taken of another model, adapter or critic.
        """
        prefix = "model."
        with self._backend.gathered(change=True):
            self.model.load_state({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
        moments: Moments = defaultdict(dict)
        for name, tensor in tensors.items():
            if name.startswith("adam."):
                _, index, moment = name.split(".")
                moments[int(index)][moment] = tensor
        self._backend.load_moments(dict(moments))
        self.updates = int(values["updates"])
        self.algorithm.load_state(values)


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)
