"""SAC-GLAM: discrete soft actor-critic on a language model's candidate actions (paper, Section 2)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from sacglam.algos import math as equations
from sacglam.algos.base import Algorithm, Weights
from sacglam.clock import PhaseClock
from sacglam.config import SacConfig
from sacglam.errors import CheckpointError
from sacglam.models.actor_critic import ActorCritic
from sacglam.prompt import query
from sacglam.types import Transition


@dataclass(frozen=True)
class SacBatch:
    """B transitions ready for the model. `next_packed` holds only the rows that bootstrap."""

    packed: Any
    action_B: Tensor
    reward_B: Tensor
    discount_B: Tensor
    bootstraps_B: Tensor  # bool: the window did not end in termination
    next_packed: Any
    hindsight_share: float = 0.0


class Temperature:
    """alpha > 0, learned through its logarithm by Adam towards a target entropy (paper, Appendix C)."""

    def __init__(self, init: float, target_entropy: float, lr: float) -> None:
        """`target_entropy` in nats; `lr` 0 keeps alpha fixed."""
        self._log_alpha = torch.tensor(math.log(init), dtype=torch.float64, requires_grad=True)
        self._target = target_entropy
        self._optimizer = torch.optim.Adam([self._log_alpha], lr=lr)

    @property
    def alpha(self) -> float:
        """The coefficient now."""
        return float(self._log_alpha.detach().exp())

    def update(self, entropy: float) -> None:
        """One step, given the mean policy entropy of a batch in nats."""
        self._optimizer.zero_grad()
        equations.alpha_loss(self._log_alpha, entropy, self._target).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def state(self) -> dict[str, Any]:
        """log alpha and Adam's moments as plain numbers."""
        moments = self._optimizer.state.get(self._log_alpha, {})
        return {"log_alpha": float(self._log_alpha.detach()), "adam": {k: float(v) for k, v in moments.items()}}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state()` gave."""
        numbers = [state["log_alpha"], *state["adam"].values()]
        if set(state["adam"]) not in (set(), {"step", "exp_avg", "exp_avg_sq"}) or not all(map(math.isfinite, numbers)):
            raise CheckpointError(f"expected log alpha and all of Adam's moments, got {state}")
        with torch.no_grad():
            self._log_alpha.fill_(state["log_alpha"])
        self._optimizer.state.clear()
        if state["adam"]:
            dtypes = {"step": torch.float32}
            self._optimizer.state[self._log_alpha] = {
                k: torch.tensor(v, dtype=dtypes.get(k, torch.float64)) for k, v in state["adam"].items()
            }


class Sac(Algorithm):
    """The updates of SAC-GLAM on an `ActorCritic`."""

    def __init__(self, model: ActorCritic, config: SacConfig, clock: PhaseClock) -> None:
        self.alpha = Temperature(config.alpha.init, config.alpha.target_entropy, config.alpha.lr)
        self._model = model
        self._config = config
        self._clock = clock

    @override
    def collate(self, rows: Sequence[Transition]) -> SacBatch:
        transitions = with_bootstrap(rows)
        tensor = self._model.tensor
        following = [t for t in transitions if not t.terminated]
        return SacBatch(
            packed=self._model.pack([query(t.goal, t.observation) for t in transitions]),
            next_packed=self._model.pack([query(t.goal, t.next_observation) for t in following]),
            action_B=tensor([t.action for t in transitions]),
            reward_B=tensor([t.reward_n for t in transitions], torch.float32),
            discount_B=tensor([t.discount_n for t in transitions], torch.float32),
            bootstraps_B=tensor([not t.terminated for t in transitions]),
            hindsight_share=sum(t.source == "hindsight" for t in rows) / len(rows),
        )

    @override
    def losses(self, batch: SacBatch, update: int) -> tuple[Tensor, dict[str, Tensor]]:
        with self._clock.phase("target"):
            target_B = targets(self._model, batch, self.alpha.alpha)
        with self._clock.phase("forward"):
            loss, metrics = sac_losses(
                self._model, batch, target_B, self.alpha.alpha, not self._warming_up(update), self._config.critic_weight
            )
        share = torch.full_like(loss, batch.hindsight_share, dtype=torch.float64)
        return loss, {**metrics, "batch_hindsight_share": share}

    @override
    def trains_actor(self, update: int) -> bool:
        # During the warm-up only the critic's gradients may reach the actor's adapter.
        return self._model.critic_trains_actor or not self._warming_up(update)

    def _warming_up(self, update: int) -> bool:
        return update < self._config.warmup_updates

    @override
    def after_step(self, metrics: dict[str, float], update: int, weights: Weights) -> dict[str, float]:
        with self._clock.phase("target"), weights():
            self._model.update_target(self._config.tau)
        if not self._warming_up(update):
            self.alpha.update(metrics["entropy"])
        return {"alpha": self.alpha.alpha}

    @override
    def state(self) -> dict[str, Any]:
        return {"alpha": self.alpha.state()}

    @override
    def load_state(self, state: dict[str, Any]) -> None:
        self.alpha.load_state(state["alpha"])


def with_bootstrap(rows: Sequence[Transition]) -> Sequence[Transition]:
    """`rows`, at least one of them with a bootstrap, so that every rank runs the same forward passes.

    Where weights are sharded every forward is a collective. Termination is a bootstrap with discount 0, so the loss
    does not change.
    """
    if not all(row.terminated for row in rows):
        return rows
    first = rows[0]
    # Its own state stands in for the next one: what follows an episode's end may be no state that can be scored.
    return [replace(first, terminated=False, discount_n=0.0, next_observation=first.observation), *rows[1:]]


def sac_losses(
    model: ActorCritic, batch: SacBatch, target_B: Tensor, alpha: float, train_actor: bool, critic_weight: float = 1.0
) -> tuple[Tensor, dict[str, Tensor]]:
    """Weighted critic loss and actor loss from one forward pass, and what to report of them (means over rows).

    Without `train_actor` (warm-up) the loss is the critic's alone.
    """
    values = model.evaluate(batch.packed)
    critic = equations.critic_loss(values.q_CBA, batch.action_B, target_B)
    loss = critic_weight * critic
    metrics = {
        "critic_loss": critic.detach(),
        "entropy": equations.entropy(values.log_pi_BA.detach()).mean(),
        "q": equations.taken(values.q_CBA.detach(), batch.action_B).mean(),
        "target": target_B.mean(),
    }
    if train_actor:
        actor = equations.actor_loss(values.log_pi_BA, values.q_CBA, alpha)
        loss = loss + actor
        metrics["actor_loss"] = actor.detach()
    return loss, metrics


@torch.no_grad()
def targets(model: ActorCritic, batch: SacBatch, alpha: float) -> Tensor:
    """y of Eq. 3, shape (B,). Rows that terminate within their window need no forward pass and get none."""
    next_value_B = torch.zeros_like(batch.reward_B)
    bootstrap = model.bootstrap(batch.next_packed)
    value_X = equations.soft_value(bootstrap.log_pi_BA, bootstrap.q_CBA, alpha)  # X: the rows that bootstrap
    next_value_B.masked_scatter_(batch.bootstraps_B, value_X)
    return equations.td_target(batch.reward_B, batch.discount_B, ~batch.bootstraps_B, next_value_B)
