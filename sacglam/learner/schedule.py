"""What fixes a gradient step beside its data: learning rates over the run, and rows in one pass."""

from __future__ import annotations

from dataclasses import dataclass

FINAL_LR_SHARE = 0.1  # what a decaying learning rate has left at the end of the budget


@dataclass(frozen=True)
class Schedule:
    """Learning rates of actor and critic, falling linearly over `total_updates` if they `decay`."""

    actor_lr: float
    critic_lr: float
    decay: bool
    total_updates: int
    micro_batch_size: int | None

    def rates(self, update: int, trains_actor: bool) -> tuple[float | None, float]:
        """Learning rates of actor and critic at this update; None for an actor that has no gradient."""
        share = 1.0
        if self.decay:
            share -= (1.0 - FINAL_LR_SHARE) * min(1.0, update / self.total_updates)
        return self.actor_lr * share if trains_actor else None, self.critic_lr * share
