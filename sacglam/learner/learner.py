"""The learner: transitions in, better adapter and critic out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sacglam.algos.sac import SacBatch, sac_losses
from sacglam.algos.temperature import Temperature
from sacglam.clock import PhaseClock
from sacglam.config import CriticConfig, SacConfig
from sacglam.errors import DivergenceError
from sacglam.learner.backend import Backend, Moments
from sacglam.learner.shares import shares, with_bootstrap
from sacglam.models.actor_critic import ActorCritic
from sacglam.models.base import PackedLM
from sacglam.models.files import exported_files
from sacglam.models.tokens import QueryTokenizer, TokenisedQuery
from sacglam.prompt import query
from sacglam.scoring.base import LogPolicy, Scorer
from sacglam.types import Adapter, Query, Transition

_Q_STATES = 32  # in one pass of `q_values`, which must fit beside an update's memory
FINAL_LR_SHARE = 0.1  # what lr_decay leaves of the learning rate at the end of the budget


class Learner:
    """Runs SAC updates on an `ActorCritic` and counts them; the count is the policy's version.

    On several ranks each holds a learner, and every call is made on all of them with the same arguments.
    """

    def __init__(
        self,
        model: ActorCritic,
        lm: PackedLM,
        tokenizer: QueryTokenizer,
        scorer: Scorer,
        backend: Backend,
        config: SacConfig,
        critic: CriticConfig,
        total_updates: int,
        clock: PhaseClock,
    ) -> None:
        """`lm` and `scorer` are over the weights of `model`; `backend` holds its actor's and its critic's parameters.

        `total_updates` is the length of the learning-rate schedule, if `config.lr_decay`.
        """
        self.model = model
        self.alpha = Temperature(config.alpha.init, config.alpha.target_entropy, config.alpha.lr)
        self.updates = 0
        self._lm = lm
        self._tokenizer = tokenizer
        self._scorer = scorer
        self._backend = backend
        self._config = config
        self._critic = critic
        self._total_updates = total_updates
        self._clock = clock

    def update(self, batches: Sequence[Sequence[Transition]]) -> list[dict[str, float]]:
        """One gradient step for each batch; the metrics of each, as means over its rows.

        Raises:
            DivergenceError: a loss or gradient is not finite; the step at fault has changed nothing, on any rank.
        """
        return [self._update(batch) for batch in batches]

    def _update(self, batch: Sequence[Transition]) -> dict[str, float]:
        train_actor = self.updates >= self._config.warmup_updates
        metrics = self._gradient(batch, train_actor)
        with self._clock.phase("optimizer"):
            metrics["grad_norm"] = self._backend.step(self._rates(train_actor))
            self._check(metrics)
            with self._backend.whole(change=True):
                self.model.update_target(self._config.tau)
            if train_actor:
                self.alpha.update(metrics["entropy"])
        self.updates += 1
        metrics["alpha"] = self.alpha.alpha
        metrics["batch_hindsight_share"] = sum(t.source == "hindsight" for t in batch) / len(batch)
        return metrics

    def _gradient(self, batch: Sequence[Transition], train_actor: bool) -> dict[str, float]:
        """Accumulate the gradient of the batch's mean loss; its metrics."""
        metrics: dict[str, float] = defaultdict(float)
        parts = shares(batch, self._backend.rank, self._backend.world, self._config.micro_batch_size)
        for number, share in enumerate(parts, start=1):
            with self._clock.phase("batch"):
                rows = self._batch(with_bootstrap(share.rows))
            with self._clock.phase("forward_backward"):
                loss, found = self._backend.forward(partial(self._losses, rows, train_actor))
                # A metric that is not finite spoils the gradient, so that one check, on its norm, stops every rank.
                weight = share.weight if all(map(math.isfinite, found.values())) else math.nan
                self._backend.backward(loss * weight, last=number == len(parts))
            for name, value in found.items():
                metrics[name] += share.weight * value
        return self._backend.total(metrics)

    def _losses(self, batch: SacBatch, train_actor: bool) -> tuple[Tensor, dict[str, float]]:
        losses = sac_losses(self.model, batch, self.alpha.alpha, train_actor)
        return losses.loss, losses.metrics

    def _check(self, metrics: Mapping[str, float]) -> None:
        faults = {name: value for name, value in metrics.items() if not math.isfinite(value)}
        if faults:
            raise DivergenceError(
                f"update {self.updates + 1} expected finite losses, got {faults}. The last checkpoint is whole; "
                "train anew with smaller algo.actor_lr and algo.critic_lr, or with algo.max_grad_norm set"
            )

    def _rates(self, train_actor: bool) -> tuple[float | None, float]:
        """Learning rates of actor and critic; None for an actor that has no gradient."""
        share = self._lr_share()
        learns = train_actor or self.model.critic_trains_actor
        return self._config.actor_lr * share if learns else None, self._config.critic_lr * share

    def _lr_share(self) -> float:
        if not self._config.lr_decay:
            return 1.0
        progress = min(1.0, self.updates / self._total_updates)
        return 1.0 - (1.0 - FINAL_LR_SHARE) * progress

    def _batch(self, transitions: Sequence[Transition]) -> SacBatch:
        device = self.model.critic_parameters()[0].device
        following = [t for t in transitions if not t.terminated]
        return SacBatch(
            packed=self.model.pack(self._tokenise([(t.goal, t.observation) for t in transitions])),
            next_packed=self.model.pack(self._tokenise([(t.goal, t.next_observation) for t in following])),
            action_B=torch.tensor([t.action for t in transitions], device=device),
            reward_B=torch.tensor([t.reward_n for t in transitions], dtype=torch.float32, device=device),
            discount_B=torch.tensor([t.discount_n for t in transitions], dtype=torch.float32, device=device),
            bootstraps_B=torch.tensor([not t.terminated for t in transitions], device=device),
        )

    def _tokenise(self, states: Sequence[tuple[str, Any]]) -> list[TokenisedQuery]:
        return self._tokenizer([query(goal, observation) for goal, observation in states])

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        """log pi over each query's actions, from the weights that learn: what engines' scores must equal.

        Raises:
            DivergenceError: the weights give no number.
        """
        return self._backend.forward(partial(self._scorer.log_policy, queries))

    def q_values(self, queries: Sequence[Query]) -> list[npt.NDArray[np.float32]]:
        """min_c Q_c of each query's own actions, one float32 array (A,) for each."""
        found: list[npt.NDArray[np.float32]] = []
        for start in range(0, len(queries), _Q_STATES):
            found += self._backend.forward(partial(self._q_values, queries[start : start + _Q_STATES]))
        return found

    @torch.no_grad()
    def _q_values(self, queries: Sequence[Query]) -> list[npt.NDArray[np.float32]]:
        values = self.model.evaluate(self.model.pack(self._tokenizer(queries)))
        q_BA = values.q_CBA.min(dim=0).values.float().cpu().numpy()
        return [row[: len(q.actions)] for row, q in zip(q_BA, queries, strict=True)]

    def adapter(self) -> Adapter:
        """The actor's LoRA weights as they are now, for the engines."""
        with self._backend.whole():
            return Adapter(self.updates, self._lm.adapter_files())

    def exported(self) -> dict[str, bytes]:
        """The learned actor and critic as files for other tools, by name."""
        with self._backend.whole():
            return exported_files(self._lm, self.model, self._critic)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that an update depends on: tensors (weights, targets, Adam's moments) and JSON values.

        The same whole tensors, on the CPU, whatever the number of ranks and the way they share the weights out.
        """
        with self._backend.whole():
            tensors = {f"model.{name}": _copied(tensor) for name, tensor in self.model.state().items()}
        for index, moments in self._backend.moments().items():
            tensors |= {f"adam.{index}.{name}": _copied(tensor) for name, tensor in moments.items()}
        return tensors, {"updates": self.updates, "alpha": self.alpha.state()}

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Take over what `state()` gave, on any number of ranks.

        Raises:
            CheckpointError: it was taken of another model, adapter or critic.
        """
        prefix = "model."
        with self._backend.whole(change=True):
            self.model.load_state({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
        moments: Moments = defaultdict(dict)
        for name, tensor in tensors.items():
            if name.startswith("adam."):
                _, index, moment = name.split(".")
                moments[int(index)][moment] = tensor
        self._backend.load_moments(dict(moments))
        self.updates = int(values["updates"])
        self.alpha.load_state(values["alpha"])


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)
