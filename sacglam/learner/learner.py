"""The learner: transitions in, better adapter and critic out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sacglam.algos.sac import SacBatch, sac_losses
from sacglam.algos.temperature import Temperature
from sacglam.clock import PhaseClock
from sacglam.config import SacConfig
from sacglam.errors import DivergenceError
from sacglam.models.actor_critic import ActorCritic
from sacglam.models.tokens import QueryTokenizer, TokenisedQuery
from sacglam.prompt import query
from sacglam.types import Transition

FINAL_LR_SHARE = 0.1  # what lr_decay leaves of the learning rate at the end of the budget


class Learner:
    """Runs SAC updates on an `ActorCritic` and counts them; the count is the policy's version."""

    def __init__(
        self,
        model: ActorCritic,
        tokenizer: QueryTokenizer,
        config: SacConfig,
        total_updates: int,
        clock: PhaseClock,
    ) -> None:
        """`total_updates` is the length of the learning-rate schedule, if `config.lr_decay`."""
        self.model = model
        self.alpha = Temperature(config.alpha.init, config.alpha.target_entropy, config.alpha.lr)
        self.updates = 0
        self._tokenizer = tokenizer
        self._config = config
        self._total_updates = total_updates
        self._clock = clock
        self._optimizer = torch.optim.Adam(
            [
                {"params": model.actor_parameters(), "lr": config.actor_lr},
                {"params": model.critic_parameters(), "lr": config.critic_lr},
            ]
        )

    def update(self, transitions: Sequence[Transition]) -> dict[str, float]:
        """One gradient step on a batch; its metrics, as means over rows.

        Raises:
            DivergenceError: the loss or the gradient is not finite; nothing has been changed.
        """
        train_actor = self.updates >= self._config.warmup_updates
        metrics: dict[str, float] = defaultdict(float)
        self._optimizer.zero_grad(set_to_none=True)
        for rows in self._micro_batches(transitions):
            with self._clock.phase("batch"):
                batch = self._batch(rows)
            share = batch.rows / len(transitions)
            with self._clock.phase("forward_backward"):
                losses = sac_losses(self.model, batch, self.alpha.alpha, train_actor)
                (losses.loss * share).backward()  # type: ignore[no-untyped-call]
            for name, value in losses.metrics.items():
                metrics[name] += share * value
        with self._clock.phase("optimizer"):
            metrics["grad_norm"] = self._apply(metrics)
            self.model.update_target(self._config.tau)
            if train_actor:
                self.alpha.update(metrics["entropy"])
        self.updates += 1
        metrics["alpha"] = self.alpha.alpha
        metrics["batch_hindsight_share"] = sum(t.source == "hindsight" for t in transitions) / len(transitions)
        return dict(metrics)

    def _apply(self, metrics: dict[str, float]) -> float:
        """Clip, check and step; the gradient's norm."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None]
        limit = self._config.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(parameters, math.inf if limit is None else limit).item()
        faults = {name: value for name, value in {**metrics, "grad_norm": norm}.items() if not math.isfinite(value)}
        if faults:
            raise DivergenceError(
                f"update {self.updates + 1} expected finite losses, got {faults}. The last checkpoint is whole; "
                "train anew with smaller algo.actor_lr and algo.critic_lr, or with algo.max_grad_norm set"
            )
        for group, rate in zip(
            self._optimizer.param_groups, (self._config.actor_lr, self._config.critic_lr), strict=True
        ):
            group["lr"] = rate * self._lr_share()
        self._optimizer.step()
        return norm

    def _lr_share(self) -> float:
        if not self._config.lr_decay:
            return 1.0
        progress = min(1.0, self.updates / self._total_updates)
        return 1.0 - (1.0 - FINAL_LR_SHARE) * progress

    def _micro_batches(self, transitions: Sequence[Transition]) -> list[Sequence[Transition]]:
        size = self._config.micro_batch_size or len(transitions)
        return [transitions[i : i + size] for i in range(0, len(transitions), size)]

    def _batch(self, transitions: Sequence[Transition]) -> SacBatch:
        device = self.model.critic_parameters()[0].device
        following = [t for t in transitions if not t.terminated]
        return SacBatch(
            packed=self.model.pack(self._tokenise([(t.goal, t.observation) for t in transitions])),
            next_packed=self.model.pack(self._tokenise([(t.goal, t.next_observation) for t in following]))
            if following
            else None,
            action_B=torch.tensor([t.action for t in transitions], device=device),
            reward_B=torch.tensor([t.reward_n for t in transitions], dtype=torch.float32, device=device),
            discount_B=torch.tensor([t.discount_n for t in transitions], dtype=torch.float32, device=device),
            bootstraps_B=torch.tensor([not t.terminated for t in transitions], device=device),
        )

    def _tokenise(self, states: Sequence[tuple[str, Any]]) -> list[TokenisedQuery]:
        return self._tokenizer([query(goal, observation) for goal, observation in states])

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that an update depends on: tensors (weights, targets, Adam's moments) and JSON values."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state().items()}
        for index, moments in self._optimizer.state_dict()["state"].items():
            tensors |= {f"adam.{index}.{name}": tensor for name, tensor in moments.items()}
        return tensors, {"updates": self.updates, "alpha": self.alpha.state()}

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Take over what `state()` gave."""
        prefix = "model."
        self.model.load_state({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
        moments: dict[int, dict[str, Tensor]] = defaultdict(dict)
        for name, tensor in tensors.items():
            if name.startswith("adam."):
                _, index, moment = name.split(".")
                moments[int(index)][moment] = tensor
        state = self._optimizer.state_dict()
        self._optimizer.load_state_dict({"state": dict(moments), "param_groups": state["param_groups"]})
        self.updates = int(values["updates"])
        self.alpha.load_state(values["alpha"])
