"""The learner: experience in, better adapter and critic out."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sacglam.algos.base import Algorithm
from sacglam.algos.imitation import Imitation
from sacglam.clock import PhaseClock
from sacglam.config.algorithm import AlgoConfig
from sacglam.errors import DivergenceError
from sacglam.learner.backend import Backend, micro_batches, moments_in, named
from sacglam.learner.classifier import Classifier
from sacglam.models.agent_model import AgentModel, check_forms, joined, under
from sacglam.models.lora import convert_once
from sacglam.types import Adapter, Batches, LogPolicy, Query, UpdateResult, Window


@dataclass(eq=False)
class Learner:
    """Takes the gradient steps of an algorithm and counts them; the count is the policy's version.

    On several ranks each holds a learner, and every call is made on all of them with the same arguments. `algorithm`
    uses the weights of `model`, which `backend` holds. Decaying learning rates reach their end after `total_updates`.
    """

    model: AgentModel
    algorithm: Algorithm
    backend: Backend
    config: AlgoConfig
    total_updates: int
    clock: PhaseClock
    classifiers: Mapping[str, Classifier] = field(default_factory=dict)
    """What learns alongside the agent, by name."""
    updates: int = 0
    _rows_that_fit: int | None = field(default=None, init=False)  # per pass, once a larger pass ran out of memory

    def learn(self, batches: Batches, probe: Sequence[Query] | None = None) -> UpdateResult:
        """Take the algorithm's gradient steps for an interval's `batches`; returns the metrics of each.

        Unless `probe` is None, also returns the adapter after them, with the policy at the states of `probe`.

        Raises:
            DivergenceError: a loss or gradient is not finite; that step has changed nothing, on any rank.
        """
        steps = self.algorithm.minibatches(batches, self._map_no_grad)
        metrics = [self._step(rows, self.algorithm, self.updates) for rows in steps]
        return UpdateResult(metrics, None if probe is None else self.publish(probe))

    def imitate(self, batches: Sequence[tuple[bool, Sequence[Window]]]) -> UpdateResult:
        """One gradient step per batch: behavioural cloning if so marked, otherwise the algorithm's own step.

        Unless the algorithm learns offline, its own steps are a warm-up, which trains only the critic. Raises what
        `learn` raises.
        """
        imitation, offline = Imitation(self.model, self.clock), self.config.learns_offline
        metrics = [
            self._step(rows, imitation if cloned else self.algorithm, self.updates if offline else -1)
            for cloned, rows in batches
        ]
        return UpdateResult(metrics, None)

    def _step(self, rows: Sequence[Any], algorithm: Algorithm, update: int) -> dict[str, float]:
        """One gradient step. If the GPU runs out of memory and no size is configured, halves the rows per pass."""
        metrics: dict[str, float] | None = None
        while metrics is None:
            size = self.config.micro_batch_rows or self._rows_that_fit or len(rows)
            try:
                with convert_once():
                    metrics = self._gradient(rows, size, algorithm, update)
            except torch.OutOfMemoryError:
                if self.config.micro_batch_rows or not self.backend.can_start_over or size == 1:
                    raise
            if metrics is None:  # after the handler, since its exception keeps the activations alive
                self._rows_that_fit = -(-size // 2)
                self.model.module.zero_grad()
                torch.cuda.empty_cache()
        share = self.config.decay(self.updates, self.total_updates)
        actor_lr = self.config.actor_lr * share if algorithm.trains_actor(update) else None
        # Imitation leaves the critic without a gradient.
        critic_lr = self.config.critic_lr * share if algorithm is self.algorithm else None
        with self.clock.phase("optimizer"):
            metrics["grad_norm"] = self.backend.step((actor_lr, critic_lr))
        self._check(metrics)
        metrics |= algorithm.after_step(metrics, update, self.backend.lerp)
        self.updates += 1
        return metrics

    def _gradient(self, rows: Sequence[Any], size: int, algorithm: Algorithm, update: int) -> dict[str, float]:
        """Accumulate the gradient of the mean loss over `rows`, at most `size` of them at once; returns its metrics."""
        sums_M = torch.zeros((), dtype=torch.float64, device=self.model.device)  # M: metrics, read once an update
        backend, steps = self.backend, algorithm.learnt_steps
        parts = micro_batches(rows, backend.rank, backend.world, size, steps)
        for number, (own, share) in enumerate(parts, start=1):
            with self.clock.phase("batch"):
                batch = algorithm.collate(own)
            loss, metrics = backend.as_forward(algorithm.losses)(batch, update)
            with self.clock.phase("backward"):
                metrics_M = torch.stack([value.double() for value in metrics.values()])
                sums_M = sums_M + share * metrics_M
                # A metric that is not finite makes the gradient NaN, so one check of its norm stops every rank.
                weight = torch.full_like(loss, share).masked_fill(~metrics_M.isfinite().all(), math.nan)
                backend.backward(loss * weight, last=number == len(parts))
        return dict(zip(metrics, backend.all_reduce_sum(sums_M).tolist(), strict=True))

    def _map_no_grad(self, compute: Callable[[Sequence[Any]], Tensor], rows: Sequence[Any], size: int) -> Tensor:
        """See `sacglam.algos.base.MapNoGrad`."""
        parts = micro_batches(range(len(rows)), self.backend.rank, self.backend.world, size)
        computed = [self.backend.as_forward(compute)([rows[i] for i in own]) for own, _ in parts]
        values_KN = torch.zeros(len(computed[0]), len(rows), dtype=torch.float64)
        for (own, share), values in zip(parts, computed, strict=True):
            if share:
                values_KN[:, list(own)] = values.to("cpu", torch.float64)
        return self.backend.all_reduce_sum(values_KN)

    def _check(self, metrics: Mapping[str, float]) -> None:
        faults = {name: value for name, value in metrics.items() if not math.isfinite(value)}
        if faults:
            raise DivergenceError(
                f"update {self.updates + 1}: expected finite losses, got {faults}. Earlier checkpoints, if there are "
                "any, are unaffected; start again with smaller algo.actor_lr and algo.critic_lr, or with "
                "algo.max_grad_norm set"
            )

    def publish(self, probe: Sequence[Query]) -> Adapter:
        """The actor's current adapter, with the policy at the states of `probe`."""
        with self.clock.phase("publish"):
            with self.backend.gathered():
                files = self.model.lm.adapter_bytes(base_dtype=True)
            return Adapter(self.updates, files, self.log_policy(probe) if probe else ())

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        """log pi over each query's actions, from the current weights: the reference for engines' scores."""
        return self.backend.as_forward(self.model.log_policy)(queries)

    def score(self, queries: Sequence[Query]) -> list[LogPolicy]:
        """`log_policy` at this rank's share of the states, dealt in turn.

        A rank with fewer states than others repeats the first one, as `Backend` requires.
        """
        rank, world = self.backend.rank, self.backend.world
        own, most = queries[rank::world], -(-len(queries) // world)
        return self.log_policy([*own, *queries[: most - len(own)]])[: len(own)]

    def predict(self, queries: Sequence[Query], name: str) -> list[npt.NDArray[np.float32]]:
        """The answers of the classifier `name` to this rank's share of the queries, dealt in turn."""
        return self.classifiers[name].predict(queries[self.backend.rank :: self.backend.world])

    def fit(self, name: str, *lesson: Any) -> None:
        """Train the classifier `name`."""
        self.classifiers[name].learn(*lesson)

    def q_values(self, queries: Sequence[Query]) -> list[npt.NDArray[np.float32]]:
        """See `AgentModel.q_values`."""
        return self.backend.as_forward(self.model.q_values)(queries)

    def exported(self) -> dict[str, bytes]:
        """Actor and critic as files for other tools, by name."""
        with self.backend.gathered():
            return self.model.exported_files()

    def seconds(self) -> dict[str, float]:
        """Seconds by phase on this rank's clock."""
        return self.clock.seconds

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that an update depends on: tensors (weights, targets, Adam's moments) and JSON values.

        The tensors are whole and on the CPU, whatever the number of ranks and the ZeRO stage.
        """
        with self.backend.gathered():
            tensors = {f"model.{name}": each.to("cpu", copy=True) for name, each in self.model.state().items()}
        tensors |= named(self.backend.moments())
        tensors |= joined({name: classifier.state() for name, classifier in self.classifiers.items()})
        return tensors, {"updates": self.updates, **self.algorithm.state()}

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Restore what `state()` gave, on any number of ranks.

        Raises:
            CheckpointError: it belongs to another model, adapter or critic.
        """
        adam = joined({"adam": under("adam", tensors)})
        with self.backend.gathered(change=True):
            self.model.load_state(under("model", tensors))
            check_forms(adam, self._moments_like(adam))
        self.backend.load_moments(moments_in(adam))
        for name, classifier in self.classifiers.items():
            classifier.load_state(under(name, tensors))
        self.updates = int(values["updates"])
        self.algorithm.load_state(values)

    def _moments_like(self, adam: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors with the shapes and types of Adam's moments, for groups that have any: a group steps as a whole."""
        forms: dict[str, Tensor] = {}
        index = itertools.count()
        for group in (self.model.actor_parameters(), self.model.critic_parameters()):
            numbered = {f"adam.{next(index)}": parameter for parameter in group}
            if any(f"{name}.step" in adam for name in numbered):
                for name, parameter in numbered.items():
                    forms[f"{name}.step"] = torch.zeros(())
                    forms[f"{name}.exp_avg"] = forms[f"{name}.exp_avg_sq"] = parameter
        return forms
